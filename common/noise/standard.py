"""Made images brought to the scale of normalised real ones."""

from __future__ import annotations

import torch
from torch import Tensor


def standard(x: Tensor) -> Tensor:
    """(n, C, H, W) with mean 0 and variance 1 per channel over the batch; a constant becomes 0."""
    deviation, mean = torch.std_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / torch.where(deviation < 1e-6, torch.ones_like(deviation), deviation)
