"""Multiply-accumulates of one forward pass: what a client's architecture costs per image."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from common.models.modes import restored


def macs(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of convolutions and linear layers for one input of ``shape`` (no batch axis).

    Norms, activations, poolings and biases are left out, as papers do. ``model`` runs once, in eval
    mode and on zeros, on the device it is on (``meta`` will do), and is left as it was.
    """
    total = 0

    def add(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear):
            total += output.numel() * module.in_features
        elif isinstance(module, nn.Conv2d):
            window = math.prod(module.kernel_size) * module.in_channels // module.groups
            total += output.numel() * window

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    first = next(model.parameters())
    try:
        with restored(model), torch.no_grad():
            model.eval()
            model(torch.zeros(1, *shape, device=first.device, dtype=first.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return total
