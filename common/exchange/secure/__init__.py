"""Secure aggregation: masks that cancel in the sum of the clients' updates.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017,
with double masks. Client k of the clients U of an attempt sends integers modulo 2³²

    y_k = q_k + PRG(b_k) + Σ_{j ∈ U, j > k} PRG(s_kj) − Σ_{j ∈ U, j < k} PRG(s_kj)

``keys.py`` derives s_kj, the key of a pair of clients in one attempt. ``shamir.py`` divides b_k,
the key of the self mask, among U. ``sums.py`` rounds updates to integers q_k and has the generator.

Deviations:
- Two exchanges instead of four. Shares of b_k travel with the upload, because nobody needs them
  before. The keys of pairs last for a run, and s_kj depends on the counter of the attempt.
- A survivor reveals s_kj of each lost client j itself. So an attempt with a lost client needs an
  answer of every survivor; in the paper the lost client's key is shared.
- No further exchange makes the clients agree on the survivors; the threshold of two thirds protects
  against a server that tells them different ones.
"""
