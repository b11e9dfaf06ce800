"""Optimisers as the configuration asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from common.records import StateDict


def make(
    parameters: Iterable[nn.Parameter],
    kind: Literal["sgd", "adam"],
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """SGD (with momentum) or Adam, in torch's fused form: one kernel for all parameters."""
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True
    )


def moments(optimizer: torch.optim.Optimizer) -> dict[int, StateDict]:
    """What an optimiser remembers, parameter by parameter: Adam's moments and its step."""
    state: dict[int, StateDict] = optimizer.state_dict()["state"]
    return {
        i: {name: v.detach().cpu().clone() for name, v in s.items() if v is not None}
        for i, s in state.items()
    }


def restore_moments(optimizer: torch.optim.Optimizer, state: dict[int, StateDict]) -> None:
    """Inverse of ``moments``, for an optimiser of the same parameters.

    A moment gets its parameter's memory format: fused kernels go through both in memory order.
    """
    groups = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def like(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(p, dtype=v.dtype).copy_(v) if v.shape == p.shape else v.clone()

    own = {i: {n: like(parameters[i].detach(), v) for n, v in s.items()} for i, s in state.items()}
    optimizer.load_state_dict({"state": own, "param_groups": groups})
