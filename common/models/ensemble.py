"""Ensembles: the weighted mean of several classifiers' outputs."""

from collections.abc import Iterable
from typing import Literal, final

import torch
from torch import Tensor, nn

Kind = Literal["logits", "softmax"]


@final
class Ensemble(nn.Module):
    """Weighted mean of K frozen classifiers' logits, z̄(x) = Σ_k w_k z_k(x) / Σ_k w_k.

    The networks are in evaluation mode on one device and may differ in architecture. ``weights``:
    w [K], non-negative with a positive sum, initially 1/K. With K = 1 the output is that network's.
    ``kind = "softmax"``: the logarithm of the weighted mean of softmax z_k(x), in place of z̄(x).
    """

    weights: Tensor

    def __init__(self, nets: Iterable[nn.Module], kind: Kind = "logits") -> None:
        super().__init__()
        self.nets, self.kind = nn.ModuleList(nets), kind
        device = next(self.parameters()).device
        self.register_buffer("weights", torch.full((len(self.nets),), 1 / len(self), device=device))
        self.eval().requires_grad_(False)

    def __len__(self) -> int:
        return len(self.nets)

    def each(self, x: Tensor) -> Tensor:
        """Return every network's logits (K, n, classes) for images (n, C, H, W)."""
        return torch.stack([net(x) for net in self.nets])

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) for images (n, C, H, W)."""
        return weighted(self.each(x), self.weights, self.kind)


def weighted(logits: Tensor, w: Tensor, kind: Kind = "logits") -> Tensor:
    """Return the mean (n, C) of logits z (K, n, C) with weights w (K); see ``Ensemble``."""
    shares = (w / w.sum())[:, None, None]
    if kind == "softmax":
        return (logits.log_softmax(2) + shares.log()).logsumexp(0)
    return (shares * logits).sum(0)
