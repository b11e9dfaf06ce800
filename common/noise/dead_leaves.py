"""Dead leaves: images of random shapes that lie on top of one another.

Lee, Mumford and Huang 2001; Baradad Jurjo et al. 2021, "Learning to see by looking at noise".
Leaves fall at uniform places, their radii r have density ∝ r⁻³, which gives images the
scale invariance of natural ones, and each has one uniform colour. Here circles and squares fall in
turn; every image is painted from the front, so a pixel has the colour of the first leaf over it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from common.noise.simple import standard

LEAVES = 64  #: of an image; they leave 2 % of it to the ground, which is one more leaf
SMALLEST, LARGEST = 1 / 16, 1 / 2  #: radii in units of the longer side
TOGETHER = 16  #: leaves laid at a time; bounds memory, not results


def dead_leaves(
    n: int, shape: tuple[int, int, int], generator: torch.Generator
) -> Iterator[Tensor]:
    """Batches of fresh images, standardised."""
    channels, height, width = shape
    device = generator.device
    across = torch.arange(width, device=device) + 0.5
    down = torch.arange(height, device=device) + 0.5
    while True:
        place = torch.rand((n, LEAVES, 3), generator=generator, device=device)
        colour = torch.rand((n, channels, LEAVES + 1), generator=generator, device=device)
        squared = (radii(place[..., 0]) * max(height, width)).square()
        dx2 = (across - width * place[..., 1, None]).square()
        dy2 = (down - height * place[..., 2, None]).square()
        front = torch.full((n, height, width), LEAVES, dtype=torch.uint8, device=device)
        for first in range(0, LEAVES, TOGETHER):
            part = slice(first, first + TOGETHER)
            depth = torch.arange(LEAVES, dtype=torch.uint8, device=device)[part]
            _lay(front, depth, dx2[:, part], dy2[:, part], squared[:, part])
        chosen = front.long().view(n, 1, -1).expand(-1, channels, -1)
        yield standard(colour.gather(2, chosen).view(n, *shape))


def radii(u: Tensor) -> Tensor:
    """Uniform u in [0, 1) to radii with density ∝ r⁻³ on [SMALLEST, LARGEST] (inverse of the cdf).

    ∫ r⁻³ dr = −r⁻²/2, so r⁻² is uniform between SMALLEST⁻² and LARGEST⁻².
    """
    return (u * LARGEST**-2 + (1 - u) * SMALLEST**-2).rsqrt()


def _lay(front: Tensor, depth: Tensor, dx2: Tensor, dy2: Tensor, squared: Tensor) -> None:
    """Lower ``front`` (n, H, W) to the depth of the nearest leaf over each pixel, in place.

    dx2 (n, L, W), dy2 (n, L, H), squared radii (n, L); even leaves are circles, odd ones squares.
    """
    even, odd = slice(0, None, 2), slice(1, None, 2)
    r2 = squared[:, :, None, None]
    circle = dx2[:, even, None, :] + dy2[:, even, :, None] <= r2[:, even]
    wide = dx2[:, odd, None, :] <= r2[:, odd]
    tall = dy2[:, odd, :, None] <= r2[:, odd]
    for cover, which in ((circle, even), (wide & tall, odd)):
        deep = depth[which].view(1, -1, 1, 1)
        nearest = torch.where(cover, deep, LEAVES).to(torch.uint8).amin(1)
        torch.minimum(front, nearest, out=front)
