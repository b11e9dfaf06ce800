"""q-FFL: fair federated learning by q-FedAvg.

Li et al., "Fair Resource Allocation in Federated Learning", 2020, Algorithm 2.

Clients with a larger loss weigh more. With L = 1/η and F_k the mean training loss of the received
w:

    Δw_k = L (w − w_k),   Δ_k = F_k^q Δw_k,   h_k = q F_k^{q−1} ‖Δw_k‖² + L F_k^q
    w ← w − Σ_k Δ_k / Σ_k h_k

which is one weighted mean: r w + Σ_k F_k^q w_k, divided by r + Σ_k F_k^q, with
r = L Σ_k q F_k^{q−1} ‖w − w_k‖². q = 0 is FedAvg with uniform weights.

Deviations: F_k + 1e-10 stands for F_k, as in the authors' code. ‖·‖ runs over the parameters;
BatchNorm's floating-point buffers take the same weighted mean (``bn-buffers``). ``train.steps``
gives equal steps here too; FedKF's comparison trained q-FFL for real epochs.
"""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field

from common import protocol
from common.config import NonNegative, Section
from common.methods.fedavg import Down
from common.records import StateDict

__all__ = ["Config", "Down", "Up"]


@final
class Config(Section):
    q: NonNegative
    """q; 0: every client the same weight; larger: fairer."""
    bn_buffers: bool
    """Average BatchNorm's running statistics; otherwise the server keeps its own."""


@final
class Up(protocol.Up):
    w: StateDict  #: w_k
    loss: Annotated[float, Field(ge=0, allow_inf_nan=False)]  #: F_k, in nats
