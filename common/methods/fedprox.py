"""FedProx: federated averaging with a proximal term.

Li et al., "Federated Optimization in Heterogeneous Networks", 2020, Algorithm 2.

As FedAvg (its messages and its server half), but client k minimises

    L(w_k) + μ/2 ‖w_k − w‖²

over its parameters; BatchNorm buffers are not pulled. μ = 0 is FedAvg.

Deviations: all selected clients do the same number of epochs; there is no partial work by γ-inexact
solutions.
"""

from typing import final

from common.methods.fedavg import Copying, Down, Up
from common.section import NonNegative

SERVER = "fedavg"


@final
class Options(Copying):
    mu: NonNegative = 0.01
    """μ, the strength of the proximal term."""
