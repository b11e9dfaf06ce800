"""Halfway: federated averaging on smoothed labels, whose server goes part of the way.

An example of this project's documentation.

Round t: client k trains w_k from w on the cross-entropy with labels smoothed by ε; the server sets

    w ← (1 − s) w + s Σ_{k∈S_t} p_k w_k

s = 1 and ε = 0 is FedAvg.
"""

from typing import Annotated, final

from pydantic import Field

from common.methods.fedavg import Averaging, Reply, Request
from common.settings.section import Fraction

__all__ = ["Options", "Reply", "Request"]


@final
class Options(Averaging):
    step: Fraction = 0.5
    """s, how far the server goes towards the mean."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """ε of the labels."""
