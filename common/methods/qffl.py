"""q-FFL: fair federated learning by q-FedAvg.

Li et al., "Fair Resource Allocation in Federated Learning", 2020, Algorithm 2.

Clients with a larger loss have a larger weight. With L = 1/η and F_k the mean training loss of the
received w:

    Δw_k = L (w − w_k),   Δ_k = F_k^q Δw_k,   h_k = q F_k^{q−1} ‖Δw_k‖² + L F_k^q
    w ← w − Σ_k Δ_k / Σ_k h_k

The new w is the weighted mean (r w + Σ_k F_k^q w_k) / (r + Σ_k F_k^q) with
r = L Σ_k q F_k^{q−1} ‖w − w_k‖². q = 0 is FedAvg with uniform weights.

Deviations: the code uses F_k + 1e-10 for F_k, as the authors' code does. ‖·‖ runs over the
parameters; floating-point BatchNorm buffers take the same weighted mean (``average.bn-buffers``).
``train.steps`` gives all clients equal steps; FedKF's comparison trained q-FFL for full epochs.
"""

from typing import Annotated, final

from pydantic import Field

from common.exchange import protocol
from common.methods.fedavg import Averaging, Request
from common.settings.config import EVERY, Required
from common.settings.section import NonNegative


@final
class Options(Averaging):
    facts = Averaging.facts.but(
        up="w; also its loss",
        leaves="the same as `fedavg`, and the loss of the received model on the training set",
    )

    leaks = "losses in addition to the weights"

    q: NonNegative = 0.0001
    """q, exponent of the loss in the weights; 0: uniform weights; larger values: fairer."""

    objectives = EVERY

    requires = {
        "average.robust": Required("none", why=", which weights clients by their losses"),
        "buffer.cache": Required(False, why=", which weights clients by their losses"),
        "oca.init": Required("uploaded", why=": a client without an upload has no loss"),
    }


@final
class Reply(protocol.ModelReply, kind="qffl.Up"):
    """Reply with w_k and the loss of the received w."""

    loss: Annotated[float, Field(ge=0, allow_inf_nan=False)]  #: F_k, in nats
