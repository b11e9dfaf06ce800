"""FedAvg: federated averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
Algorithm 1.

Round t: the server sends w to the selected clients S_t; each trains E epochs of SGD from w on its
own n_k samples and returns w_k; the server sets

    w ← Σ_{k∈S_t} p_k w_k,    p_k = n_k / Σ n  (``weights = "samples"``)  or  1/|S_t| (``"uniform"``).

Every client trains the global architecture, whatever its entry in the fleet; it keeps nothing.

Deviations: the paper has no BatchNorm. Floating-point buffers are averaged like parameters
(``bn-buffers``), as in all code bases that we know; integer counters keep the largest.
"""

from __future__ import annotations

from typing import Literal, final

from common import protocol
from common.config import Section
from common.records import StateDict


class Averaging(Section):
    """Knobs of every method that averages models."""

    weights: Literal["samples", "uniform"]
    bn_buffers: bool
    """Average BatchNorm's running statistics; otherwise the server keeps its own."""


@final
class Config(Averaging):
    pass


@final
class Down(protocol.Down):
    w: StateDict  #: global model


@final
class Up(protocol.Up):
    w: StateDict  #: w_k, trained from w
