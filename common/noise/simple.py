"""Noise without structure, every number drawn on its own, and the scale of noise with structure."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def gaussian(n: int, shape: tuple[int, int, int], generator: torch.Generator) -> Iterator[Tensor]:
    """N(0, 1), not standardised further (Raikwar and Mishra 2022; FedORION, Algorithm 1)."""
    while True:
        yield torch.randn((n, *shape), generator=generator, device=generator.device)


def uniform(n: int, shape: tuple[int, int, int], generator: torch.Generator) -> Iterator[Tensor]:
    """U(−√3, √3), of variance 1 (FedDF's code distils on uniform images too)."""
    side = math.sqrt(3)
    while True:
        z = torch.rand((n, *shape), generator=generator, device=generator.device)
        yield z.mul_(2 * side).sub_(side)


def standard(x: Tensor) -> Tensor:
    """(n, C, H, W) with mean 0 and variance 1 per channel over the batch; a constant becomes 0."""
    deviation, mean = torch.std_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / torch.where(deviation < 1e-6, torch.ones_like(deviation), deviation)
