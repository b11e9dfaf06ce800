"""FedNova: federated averaging of updates normalised by the number of local steps.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020, equations 6 and 7 with the momentum of its section 5.

FedNova uses FedAvg's messages and client half. Client k takes τ_k steps. With SGD's momentum ρ they
are equivalent to

    a_k = (τ_k − ρ (1 − ρ^τ_k) / (1 − ρ)) / (1 − ρ),    a_k = τ_k without momentum

and the server sets, with d_k = (w − w_k) / a_k,

    w ← w − (Σ_k p_k a_k) Σ_k p_k d_k

over the parameters; BatchNorm's buffers are averaged as in FedAvg. The new w is the mean of
w + (Σ_j p_j a_j / a_k) (w_k − w), and with equal a_k it is FedAvg bit for bit. More local steps do
not increase the weight of a client. Under ``average.across = "layerwise"`` both sums run, for each
layer, over the clients that have it.

Clients do not send τ_k. The server computes it from the census' n_k, the batch size and the epochs,
or from ``train.steps``. A client therefore cannot report more steps than its samples allow.

Deviations: momentum is included as in the authors' code. Nesterov momentum and the momentum of
optimisers other than SGD are ignored. There is no proximal term, which would change a_k. With
``average.robust`` the normalised models are combined. Under OCA, the cached models are normalised
as if they had started from the last ŵ.
"""

from typing import final

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.config import EVERY, Required

CLIENT = "fedavg"


@final
class Options(Averaging):
    """Options of FedNova."""

    objectives = EVERY

    facts = Averaging.facts.but(
        leaves="the same as `fedavg`; how many steps it took is computed from the census' sample "
        "count, not sent",
        infers="the same as with `fedavg`. A sample count made up (up to `max-samples`) also "
        "changes how far the client's step is scaled down",
        networks="parts",
    )

    leaks = "steps whose weights follow from sample counts"
    schemes = ("none", "layerwise", "same")
    requires = {"buffer.cache": Required(False, why=", which divides an update by its steps")}
