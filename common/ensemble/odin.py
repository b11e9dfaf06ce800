"""ODIN: how familiar an image is to a classifier, from temperature and a small perturbation.

Liang et al., "Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks",
ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def odin_score(
    net: nn.Module, x: Tensor, *, T: float, epsilon: float, std: Sequence[float]
) -> Tensor:
    """max softmax(f(x')/T) with x' = x − ε sign(−∇_x log max softmax(f(x)/T)); [n] in (0, 1].

    ``x``: normalised images [n, C, H, W]; ``std``: the deviations by which they were normalised, so
    that ε is in units of pixels in [0, 1]. The network is in evaluation mode; its parameters and
    their gradients stay as they are. Equations 1 to 3; the paper has T = 1000, ε = 0.0014.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = net(x) / T
        loss = F.cross_entropy(logits, logits.argmax(1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
    scale = torch.tensor(std, dtype=x.dtype, device=x.device).view(-1, 1, 1)
    with torch.no_grad():
        moved = x - epsilon * gradient.sign() / scale
        return torch.softmax(net(moved) / T, dim=1).amax(1)


def rescaled(scores: Tensor) -> Tensor:
    """Scores [N] stretched to [0, 1]; all 0.5 if they are equal.

    With T = 1000 all scores lie within a thousandth of 1/C; a softmax over clients would see none
    of it.
    """
    low, high = scores.min(), scores.max()
    if not bool(high > low):
        return torch.full_like(scores, 0.5)
    return (scores - low) / (high - low)
