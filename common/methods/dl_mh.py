"""DL-MH: one-shot distillation of clients with different classes; baseline UHC.

"Adaptive Dual-Mode Distillation with Incentive Schemes for Scalable, Heterogeneous Federated
Learning on Non-IID Data", section 3.2, Algorithms 3 and 4.

DL-MH differs from DL-SH in the heads: M_i has one node for each of the client's classes d in
ascending order, and labels are indices into d (Algorithm 3, 2-11). The reply holds M_i(X_dist)
[N, |d|], w_i [N] and the schema d. The server maps and masks the predictions, then continues as in
DL-SH (Algorithm 4, 1-11):

    M_i'(x)[d[j]] = M_i(x)[j],  0 for classes not in d
    W_i(x) = exp(w_i(x)/T) / Σ_j exp(w_j(x)/T)                             (6)
    Y_g(x) = Σ_i W_i(x) M_i'(x)

Each row of M_i' sums to 1, so each row of Y_g does too. If every client has every class, the result
equals that of DL-SH to the bit.

Baseline in the same pipeline: UHC (Vongkulbhisal et al., CVPR 2019) instead of the weighted sum,
``ensemble.aggregation = "uhc-ce"`` (cross-entropy, ``ensemble.uhc-steps`` gradient steps of size
``ensemble.uhc-lr``) or ``"uhc-mf"`` (rank-1 factorisation of probabilities, ``ensemble.uhc-steps``
alternations). UHC uses no confidences: run it with ``confidence.kind = "uniform"``. It must fail
where no two clients share a class (NIID-1): the predictions do not determine how probability is
divided between the clients.

Deviations: as DL-SH; in addition
- Logits cannot be masked by zeros, so clients send probabilities.
- A client with a single class has a head of two nodes and sends the column of its class. It trains
  only its confidence model.
"""

from typing import final

from jaxtyping import Shaped
from torch import Tensor

from common.exchange import protocol
from common.exchange.protocol import Count
from common.methods.dl_sh import Distilling, Request


class Masking(Distilling):
    """Options of methods whose clients have heads for their own classes only."""

    facts = Distilling.facts.but(
        asynchronous="together",
        leaves="the same as `dl-sh` for the client's own classes, and which classes these are",
        infers="the same as with `dl-sh`",
    )

    rules = ("weighted_sum", "literal_product", "uhc-ce", "uhc-mf")


@final
class Options(Masking):
    """Options of DL-MH."""


class SchemeReply(protocol.Reply, kind="dl_mh.Schemed"):
    """Reply of a client whose head has only the client's own classes."""

    theta: Shaped[Tensor, "N d"]  #: M_i(X_dist), probabilities in the wire's dtype
    w: Shaped[Tensor, " N"] | None  #: w_i on the wire; None under confidence.kind = "uniform"
    d: list[Count]  #: schema S_i: the class of each column of theta


@final
class Reply(SchemeReply, kind="dl_mh.Up"):
    """Reply of DL-MH."""
