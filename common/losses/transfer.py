"""Losses of FedKTL (Zhang et al., CVPR 2024): an angular margin, and a distance of two samples."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""a of the kernels exp(−d² / 2a) in the released code."""
TINY = 1e-12
"""Smallest squared sine, because the square root has no gradient at 0."""


def arcface(cosines: Tensor, y: Tensor, scale: float, margin: float) -> Tensor:
    """Return CE(s · c, y), where c_y is cos(θ_y + m): mean over the batch, in nats.

    ``cosines``: cos θ of n samples and all classes [n, C], labels y [n], ``scale`` s > 0,
    ``margin`` m ≥ 0 in radians (Deng et al., "ArcFace", CVPR 2019, equation 3).
    """
    true = cosines.gather(1, y[:, None])
    sine = (1 - true.square()).clamp_min(TINY).sqrt()
    moved = math.cos(margin) * true - math.sin(margin) * sine
    return F.cross_entropy(scale * cosines.scatter(1, y[:, None], moved), y)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of samples x and y, both [n, d].

    The mean over pairs (i, j) of k(x_i, x_j) + k(y_i, y_j) − 2 k(x_i, y_j), where the kernel k is
    the sum of exp(−‖·‖² / 2a) over ``BANDWIDTHS`` (Gretton et al. 2012, equation 5).
    """

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = (a[:, None] - b).square().sum(2)
        return torch.stack([torch.exp(-squares / (2 * width)) for width in BANDWIDTHS]).sum(0)

    return (kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)).mean()
