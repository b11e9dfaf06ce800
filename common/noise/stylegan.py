"""Images of a StyleGAN that nobody trained.

Baradad Jurjo et al. 2021, "Learning to see by looking at noise": the architecture alone (Karras et
al. 2020, StyleGAN2) with random weights makes images with structure. Ours is a small one: a mapping
of latents to styles, then from 4×4 upwards, a modulated and demodulated 3×3 convolution, pixel
noise, a random bias and a leaky ReLU at each size, and the sum of each size's colours. Every batch
comes from a network of its own, so that a round is not the taste of one.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from common.noise.simple import standard

LATENT = 64  #: latent numbers, and the size of a style
WIDTH = 16  #: channels at every size
FIRST = 4  #: side of the constant that everything grows from
SLOPE = 0.2
GRAIN = 0.2  #: strength of the pixel noise


def stylegan(n: int, shape: tuple[int, int, int], generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of n images from one fresh network each, standardised."""
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
