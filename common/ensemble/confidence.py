"""DL-SH: the clients' predictions, weighted sample by sample with their confidences.

Shapes: M clients, N public samples, C classes. Clients are taken in the order given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EDGE = 1 / 510
"""Confidences stay this far from 0 and 1 before their logit is taken: half a step of 8 bits."""


def client_weights(w: Tensor, T: float, space: str = "prob") -> Tensor:
    """W_i(x) = exp(w_i(x)/T) / Σ_j exp(w_j(x)/T), a softmax over the clients (DL-SH, eq. 4).

    ``w``: P("this sample is like mine") in [0, 1], [M, N]; T > 0. ``space = "logit"`` takes the
    logit of w, which is not bounded, instead. Returns [M, N], columns summing to 1.
    """
    if space == "logit":
        w = torch.logit(w, eps=EDGE)
    return torch.softmax(w / T, dim=0)


def weighted_sum(predictions: Sequence[Tensor], W: Tensor) -> Tensor:
    """Σ_i W_i(x) M_i(x): predictions [N, C] of each client, W [M, N] (DL-SH, eq. 1)."""
    assert len(predictions) == len(W)
    total = torch.zeros_like(predictions[0])
    for theta, weights in zip(predictions, W, strict=True):
        total = total + weights[:, None] * theta
    return total


def literal_product(predictions: Sequence[Tensor], W: Tensor) -> Tensor:
    """Mean of the predictions times the mean of the weights (DL-SH, Algorithm 2, lines 4-6).

    Σ_i W_i = 1, so the weights come to the constant 1/M: the confidences have no effect.
    """
    return torch.stack(list(predictions)).mean(0) * W.mean(0)[:, None]
