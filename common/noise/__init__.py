"""Noise: inputs from no data set, on which a server distils its clients' models.

A kind is a function ``kind(n, shape, generator)`` that yields batches (n, C, H, W) float32 without
end, on the generator's device and from it alone. All kinds have mean 0 and variance 1, as the
normalised images have that the networks were trained on.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from common.noise.dead_leaves import dead_leaves
from common.noise.simple import gaussian, uniform
from common.noise.stylegan import stylegan

Noise = Callable[[int, tuple[int, int, int], torch.Generator], Iterator[Tensor]]

NOISES: dict[str, Noise] = {
    "gaussian": gaussian,
    "uniform": uniform,
    "dead_leaves": dead_leaves,
    "stylegan": stylegan,
}


def batches(
    kind: str, count: int, n: int, shape: tuple[int, int, int], generator: torch.Generator
) -> Iterator[tuple[Tensor]]:
    """``count`` batches of ``n`` samples of ``shape`` (C, H, W), as ``fit`` takes them."""
    for z in islice(NOISES[kind](n, shape, generator), count):
        yield (z,)
