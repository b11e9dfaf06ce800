"""Optimisers as the configuration asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn


def make(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    kind: Literal["sgd", "adam"],
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """SGD (with momentum) or Adam, in torch's fused form: one kernel for all parameters.

    ``parameters`` may be groups with learning rates of their own, as torch takes them.
    """
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True
    )
