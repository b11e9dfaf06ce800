"""Noise: inputs from no data set, on which a server distils its clients' models.

A kind is a function ``kind(n, shape, generator)`` that yields batches (n, C, H, W) float32 without
end, on the generator's device and from it alone. All kinds have mean 0 and variance 1, as the
normalised images have that the networks were trained on.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

LEAVES = 64  #: of an image; they leave 2 % of it to the ground, which is one more leaf
SMALLEST, LARGEST = 1 / 16, 1 / 2  #: radii of leaves in units of the longer side
TOGETHER = 16  #: leaves laid at a time; bounds memory, not results

LATENT = 64  #: latent numbers of a StyleGAN, and the size of a style
WIDTH = 16  #: channels at every size
FIRST = 4  #: side of the constant that everything grows from
SLOPE = 0.2
GRAIN = 0.2  #: strength of the pixel noise


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


def dead_leaves(
    n: int, shape: tuple[int, int, int], generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield images of random shapes that lie on top of one another, standardised.

    Leaves fall at uniform places, their radii r have density ∝ r⁻³, which gives images the scale
    invariance of natural ones, and each has one uniform colour. Circles and squares fall in turn;
    every image is painted from the front, so a pixel has the colour of the first leaf over it (Lee,
    Mumford and Huang 2001; Baradad Jurjo et al. 2021, "Learning to see by looking at noise").
    """
    channels, height, width = shape
    device = generator.device
    across = torch.arange(width, device=device) + 0.5
    request = torch.arange(height, device=device) + 0.5
    while True:
        place = torch.rand((n, LEAVES, 3), generator=generator, device=device)
        colour = torch.rand((n, channels, LEAVES + 1), generator=generator, device=device)
        squared = (radii(place[..., 0]) * max(height, width)).square()
        dx2 = (across - width * place[..., 1, None]).square()
        dy2 = (request - height * place[..., 2, None]).square()
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


def stylegan(n: int, shape: tuple[int, int, int], generator: torch.Generator) -> Iterator[Tensor]:
    """Yield images of an untrained StyleGAN, a fresh network for each batch, standardised.

    Random weights of the architecture (Karras et al. 2020, StyleGAN2) make images with structure
    (Baradad Jurjo et al. 2021). Ours is a small one: a mapping of latents to styles, then from 4×4
    upwards, a modulated and demodulated 3×3 convolution, pixel noise, a random bias and a leaky
    ReLU at each size, and the sum of each size's colours.
    """
    while True:
        yield standard(images(n, shape, generator))


def images(n: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """(n, C, H, W) images of one network, in no particular scale."""

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
    """A convolution whose weights are scaled per sample and brought back to norm 1.

    x (n, c, h, w), weight (d, c, 3, 3), scales (n, c); out (n, d, h, w):
    ŵ_dc = s_c w_dc / ‖s ⊙ w_d‖ (StyleGAN2, equations 1 and 3).
    """
    power = scales.square() @ weight.square().sum((2, 3)).T
    y = F.conv2d(x * scales[:, :, None, None], weight, padding=1)
    return y * (power + 1e-8).rsqrt()[:, :, None, None]


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
