"""Several classifiers that answer as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn


@final
class Ensemble(nn.Module):
    """z̄(x) = Σ_k w_k z_k(x) / Σ_k w_k, the weighted mean of K frozen classifiers' logits.

    They are in evaluation mode, on one device, and may differ in architecture. ``weights``: w [K],
    not negative and not all 0, at first all 1/K. A single network answers as it would alone.
    """

    weights: Tensor

    def __init__(self, nets: Iterable[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        device = next(self.parameters()).device
        self.register_buffer("weights", torch.full((len(self.nets),), 1 / len(self), device=device))
        self.eval().requires_grad_(False)

    def __len__(self) -> int:
        return len(self.nets)

    def each(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to every network's logits (K, n, classes)."""
        return torch.stack([net(x) for net in self.nets])

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        return weighted(self.each(x), self.weights)


def weighted(logits: Tensor, w: Tensor) -> Tensor:
    """Σ_k w_k z_k / Σ_k w_k (n, C) of logits z (K, n, C) and weights w (K)."""
    return ((w / w.sum())[:, None, None] * logits).sum(0)
