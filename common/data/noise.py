"""Noise on which a server distils its clients' models without a data set.

A kind is a function ``kind(n, shape, generator)`` that yields an endless sequence of batches
(n, *shape), float32, drawn from the generator on its device. All kinds have mean 0 and variance 1,
like the normalised samples on which the networks are trained.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from common.data import kinds
from common.data.kinds import IMAGE, TOKENS, Shape

LEAVES = 64  #: leaves in an image; the background, one more leaf, covers 2 % of it
SMALLEST, LARGEST = 1 / 16, 1 / 2  #: radii of leaves in units of the longer side
TOGETHER = 16  #: leaves painted at a time; limits memory and does not change results

LATENT = 64  #: length of the latent vector of a StyleGAN and of a style
WIDTH = 16  #: channels at every size
FIRST = 4  #: side of the constant input
SLOPE = 0.2
GRAIN = 0.2  #: strength of the pixel noise


def gaussian(n: int, shape: Shape, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield N(0, 1), not standardised (Raikwar and Mishra 2022; FedORION, Algorithm 1)."""
    while True:
        yield torch.randn((n, *shape), generator=generator, device=generator.device)


def uniform(n: int, shape: Shape, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield U(−√3, √3), of variance 1 (FedDF's code distils on uniform images too)."""
    side = math.sqrt(3)
    while True:
        z = torch.rand((n, *shape), generator=generator, device=generator.device)
        yield z.mul_(2 * side).sub_(side)


def standard(x: Tensor) -> Tensor:
    """Return x (n, C, H, W) with mean 0 and variance 1 per channel; constant channels become 0."""
    deviation, mean = torch.std_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / torch.where(deviation < 1e-6, torch.ones_like(deviation), deviation)


def dead_leaves(n: int, shape: Shape, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield images of random shapes that lie on top of one another, standardised.

    Leaves have uniform positions and one uniform colour each. Their radii r have density ∝ r⁻³,
    which makes the images scale-invariant like natural ones. Circles and squares alternate. Images
    are painted from the front, so a pixel has the colour of the first leaf over it (Lee, Mumford
    and Huang 2001; Baradad Jurjo et al. 2021, "Learning to see by looking at noise").
    """
    channels, height, width = shape
    device = generator.device
    columns = torch.arange(width, device=device) + 0.5
    rows = torch.arange(height, device=device) + 0.5
    while True:
        place = torch.rand((n, LEAVES, 3), generator=generator, device=device)
        colour = torch.rand((n, channels, LEAVES + 1), generator=generator, device=device)
        squared = (radii(place[..., 0]) * max(height, width)).square()
        dx2 = (columns - width * place[..., 1, None]).square()
        dy2 = (rows - height * place[..., 2, None]).square()
        front = torch.full((n, height, width), LEAVES, dtype=torch.uint8, device=device)
        for first in range(0, LEAVES, TOGETHER):
            leaves = slice(first, first + TOGETHER)
            depth = torch.arange(LEAVES, dtype=torch.uint8, device=device)[leaves]
            _paint(front, depth, dx2[:, leaves], dy2[:, leaves], squared[:, leaves])
        chosen = front.long().view(n, 1, -1).expand(-1, channels, -1)
        yield standard(colour.gather(2, chosen).view(n, *shape))


def radii(u: Tensor) -> Tensor:
    """Return radii of density ∝ r⁻³ on [SMALLEST, LARGEST] from uniform u (inverse of the cdf).

    ∫ r⁻³ dr = −r⁻²/2, so r⁻² is uniform between SMALLEST⁻² and LARGEST⁻².
    """
    return (u * LARGEST**-2 + (1 - u) * SMALLEST**-2).rsqrt()


def _paint(front: Tensor, depth: Tensor, dx2: Tensor, dy2: Tensor, squared: Tensor) -> None:
    """Set ``front`` (n, H, W) in place to the depth of the nearest leaf over each pixel.

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


def stylegan(n: int, shape: Shape, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield images of an untrained StyleGAN, a new network for each batch, standardised.

    Random weights of the architecture (Karras et al. 2020, StyleGAN2) give images with structure
    (Baradad Jurjo et al. 2021). This network is small: it maps latents to styles. From 4×4 upwards,
    each size has a modulated and demodulated 3×3 convolution, pixel noise, a random bias and a
    leaky ReLU. An image is the sum of the colours of all sizes.
    """
    while True:
        yield standard(images(n, shape, generator))


def images(n: int, shape: Shape, generator: torch.Generator) -> Tensor:
    """Return images (n, C, H, W) of one network, not standardised."""

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device)

    channels, height, width = shape
    style = normal(n, LATENT)
    for _ in range(2):
        style = F.leaky_relu(style @ normal(LATENT, LATENT) / math.sqrt(LATENT), SLOPE)
        style = style * style.square().mean(1, keepdim=True).add(1e-8).rsqrt()
    x = normal(1, WIDTH, FIRST, FIRST).expand(n, -1, -1, -1)
    colours = torch.zeros(n, channels, FIRST, FIRST, device=generator.device)
    while True:
        scales = 1 + style @ normal(LATENT, WIDTH) / math.sqrt(LATENT)
        x = modulated(x, normal(WIDTH, WIDTH, 3, 3), scales)
        x = x + GRAIN * normal(n, 1, *x.shape[2:]) + normal(1, WIDTH, 1, 1)
        x = F.leaky_relu(x, SLOPE)
        scales = 1 + style @ normal(LATENT, WIDTH) / math.sqrt(LATENT)
        colours = colours + F.conv2d(x * scales[:, :, None, None], normal(channels, WIDTH, 1, 1))
        if x.shape[-1] >= max(height, width):
            return colours[:, :, :height, :width]
        x, colours = (F.interpolate(maps, scale_factor=2.0) for maps in (x, colours))


def modulated(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return a convolution whose weights are scaled for each sample and normalised to norm 1.

    x (n, c, h, w), weight (d, c, 3, 3), scales (n, c); output (n, d, h, w):
    ŵ_dc = s_c w_dc / ‖s ⊙ w_d‖ (StyleGAN2, equations 1 and 3).
    """
    power = scales.square() @ weight.square().sum((2, 3)).T
    y = F.conv2d(x * scales[:, :, None, None], weight, padding=1)
    return y * (power + 1e-8).rsqrt()[:, :, None, None]


Noise = Callable[[int, Shape, torch.Generator], Iterator[Tensor]]

NOISES: dict[str, Noise] = {
    "gaussian": gaussian,
    "uniform": uniform,
    "dead_leaves": dead_leaves,
    "stylegan": stylegan,
}


OF_IMAGES = ("dead_leaves", "stylegan")  #: kinds of noise with the structure of images


def check(kind: str, shape: Shape) -> None:
    """Raise ``ValueError``, one line, if this kind of noise has no samples of ``shape``."""
    if kinds.of(shape) is TOKENS:
        raise ValueError(f"noise.kind = {kind!r} draws numbers, but the data are texts of tokens")
    if kind in OF_IMAGES and kinds.of(shape) is not IMAGE:
        allowed = ", ".join(name for name in NOISES if name not in OF_IMAGES)
        raise ValueError(
            f"noise.kind = {kind!r} draws images, but the data are {kinds.describe(shape)}; "
            f"allowed: {allowed}"
        )


def batches(
    kind: str, count: int, n: int, shape: Shape, generator: torch.Generator
) -> Iterator[tuple[Tensor]]:
    """Yield ``count`` batches of ``n`` samples of ``shape`` in the form for ``fit``."""
    for z in islice(NOISES[kind](n, shape, generator), count):
        yield (z,)
