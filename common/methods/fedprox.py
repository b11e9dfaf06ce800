"""FedProx: federated averaging with a proximal term.

Li et al., "Federated Optimization in Heterogeneous Networks", 2020, Algorithm 2.

FedProx uses FedAvg's messages and server half, but client k minimises

    L(w_k) + μ/2 ‖w_k − w‖²

over its parameters; the term does not include BatchNorm buffers. μ = 0 is FedAvg.

Deviations: all selected clients do the same number of epochs; there is no partial work by γ-inexact
solutions.
"""

from typing import final

from common.methods.fedavg import Copying, Reply, Request
from common.settings.config import EVERY
from common.settings.section import NonNegative

SERVER = "fedavg"


@final
class Options(Copying):
    mu: NonNegative = 0.01
    """μ, the weight of the proximal term."""

    objectives = EVERY
