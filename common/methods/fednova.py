"""FedNova: federated averaging of steps that are normalised by how many they were.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020, equations 6 and 7 with the momentum of its section 5.

As FedAvg (its messages and its client half). Client k takes τ_k steps, which under SGD's momentum ρ
amount to

    a_k = (τ_k − ρ (1 − ρ^τ_k) / (1 − ρ)) / (1 − ρ),    a_k = τ_k without momentum

and the server sets, with d_k = (w − w_k) / a_k,

    w ← w − (Σ_k p_k a_k) Σ_k p_k d_k

over the parameters; BatchNorm's buffers are averaged as in FedAvg. It is the mean of
w + (Σ_j p_j a_j / a_k) (w_k − w), and with equal a_k it is FedAvg bit for bit. A client that took
more steps pulls no harder for it. Under ``average.across = "layerwise"`` both sums run, layer by
layer, over the clients that have it.

τ_k does not travel. The server computes it from the census' n_k, the batch size and the epochs, or
``train.steps``: a client cannot claim more steps than its samples make.

Deviations: momentum is counted as the authors' code does, Nesterov's and that of other optimisers
than SGD is not. There is no proximal term, with which their a_k would differ. With
``average.robust`` the normalised models are combined. Under OCA, the cached uploads are normalised
as if they had started from the last ŵ.
"""

from typing import final

from common.methods.fedavg import Averaging, Down, Up

CLIENT = "fedavg"


@final
class Options(Averaging):
    """None of its own."""

    leaks = "steps whose weights follow from sample counts"
    schemes = ("none", "layerwise", "same")
