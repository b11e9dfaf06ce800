"""Normalisation layers by name, for architectures that exist with several."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

Norm = Callable[[int], nn.Module]  #: channels to a layer over (n, channels, h, w)


def batch(channels: int) -> nn.Module:
    """BatchNorm with torch's defaults."""
    return nn.BatchNorm2d(channels)


def single(channels: int) -> nn.Module:
    """GroupNorm with one channel per group, FedKF's choice (``num_groups = channels``).

    This is instance norm with an affine map; it needs feature maps of more than one pixel.
    """
    return nn.GroupNorm(channels, channels)


def sixteen(channels: int) -> nn.Module:
    """GroupNorm of 16 groups, or of the most that divide both 16 and ``channels``."""
    return nn.GroupNorm(math.gcd(16, channels), channels)
