"""Several classifiers that answer as one."""

from collections.abc import Iterable
from typing import Literal, final

import torch
from torch import Tensor, nn

Kind = Literal["logits", "softmax"]


@final
class Ensemble(nn.Module):
    """z̄(x) = Σ_k w_k z_k(x) / Σ_k w_k, the weighted mean of K frozen classifiers' logits.

    They are in evaluation mode, on one device, and may differ in architecture. ``weights``: w [K],
    not negative and not all 0, at first all 1/K. A single network answers as it would alone.
    ``kind = "softmax"``: the logarithm of the same mean of softmax z_k(x), in place of z̄(x).
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
        """Images (n, C, H, W) to every network's logits (K, n, classes)."""
        return torch.stack([net(x) for net in self.nets])

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        return weighted(self.each(x), self.weights, self.kind)


def weighted(logits: Tensor, w: Tensor, kind: Kind = "logits") -> Tensor:
    """What logits z (K, n, C) with weights w (K) come to, (n, C): as ``Ensemble`` says."""
    shares = (w / w.sum())[:, None, None]
    if kind == "softmax":
        return (logits.log_softmax(2) + shares.log()).logsumexp(0)
    return (shares * logits).sum(0)
