"""FedProx: federated averaging with a proximal term.

Li et al., "Federated Optimization in Heterogeneous Networks", 2020, Algorithm 2.

As FedAvg (its messages and its server half), but client k minimises

    L(w_k) + μ/2 ‖w_k − w‖²

over its parameters; BatchNorm buffers are not pulled. μ = 0 is FedAvg.

Deviations: all selected clients do the same number of epochs; there is no partial work by γ-inexact
solutions. ``inactive`` is FedAvg's.
"""

from __future__ import annotations

from typing import final

from common.config import NonNegative
from common.methods.fedavg import Across, Caching, Down, Up

__all__ = ["Config", "Down", "Up"]


@final
class Config(Caching):
    across: Across
    """As in FedAvg's contract."""
    inactive: bool
    """Active-inactive aggregation, as in FedAvg's contract."""
    mu: NonNegative
    """μ ≥ 0, the strength of the proximal term."""
