"""Several classifiers that answer as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier

Kind = Literal["logits", "softmax"]


@final
class Ensemble(nn.Module):
    """K frozen classifiers of any architectures, on one device and in evaluation mode.

    ``kind = "logits"``: z̄(x) = Σ_k w_k z_k(x) / Σ_k w_k. ``"softmax"``: the logarithm of the same
    mean of softmax z_k(x). ``weights``: w [K], not negative and not all 0, by default all 1/K; of
    one network alone they change no bit of the logits.
    """

    weights: Tensor

    def __init__(
        self,
        nets: Sequence[Classifier],
        weights: Tensor | None = None,
        kind: Kind = "logits",
    ) -> None:
        super().__init__()
        self.nets, self.kind = nn.ModuleList(nets), kind
        device = nets[0].head.weight.device
        equal = torch.full((len(nets),), 1 / len(nets), device=device)
        self.register_buffer("weights", equal if weights is None else weights)
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
