"""A generator of images from latent vectors in the manner of StyleGAN2, and its file.

Karras et al., "Analyzing and Improving the Image Quality of StyleGAN", CVPR 2020. The layers are
those of an untrained StyleGAN for noise images (``common/data/noise.py``), as a module with
weights.
"""

import math
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.data.noise import FIRST, LATENT, SLOPE, WIDTH, modulated
from common.exchange import model_file, tree
from common.exchange.records import StateDict
from common.files import Damaged
from common.models.shapes import without_values

LEVELS = 9  #: largest number of sizes, of images of 1024×1024 pixels


@final
class Level(nn.Module):
    """Layers of one size: a modulated 3×3 convolution, and the colours of its maps."""

    def __init__(self, channels: int, vector: int, width: int) -> None:
        super().__init__()
        self.style, self.colour_style = nn.Linear(vector, width), nn.Linear(vector, width)
        self.weight = nn.Parameter(torch.randn(width, width, 3, 3))
        self.bias = nn.Parameter(torch.randn(1, width, 1, 1))
        self.colour = nn.Parameter(torch.randn(channels, width, 1, 1) / math.sqrt(width))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return maps (n, width, h, w) and colours (n, channels, h, w), x (n, width, h, w)."""
        x = F.leaky_relu(modulated(x, self.weight, 1 + self.style(v)) + self.bias, SLOPE)
        return x, F.conv2d(x * (1 + self.colour_style(v))[:, :, None, None], self.colour)


@final
class StyleGAN(nn.Module):
    """Generator with ``levels`` sizes from 4×4 on, each twice the one before.

    ``mapping`` maps noise z (n, ``latent``) to vectors v (n, ``vector``), ``synthesis`` maps these
    to images (n, channels, side, side), about −1 to 1.
    """

    def __init__(self, channels: int, latent: int, vector: int, width: int, levels: int) -> None:
        super().__init__()
        self.latent, self.vector = latent, vector
        self.layers = nn.ModuleList([nn.Linear(latent, vector), nn.Linear(vector, vector)])
        self.const = nn.Parameter(torch.randn(1, width, FIRST, FIRST))
        self.levels = nn.ModuleList(Level(channels, vector, width) for _ in range(levels))

    def mapping(self, z: Tensor) -> Tensor:
        v = z
        for layer in self.layers:
            v = v * v.square().mean(1, keepdim=True).add(1e-8).rsqrt()
            v = F.leaky_relu(layer(v), SLOPE)
        return v

    def synthesis(self, v: Tensor) -> Tensor:
        x: Tensor = self.const.expand(len(v), -1, -1, -1)
        colours: Tensor | None = None
        for level in self.levels:
            if colours is not None:
                x, colours = (F.interpolate(maps, scale_factor=2.0) for maps in (x, colours))
            x, more = level(x, v)
            colours = more if colours is None else colours + more
        assert colours is not None, "at least one level"
        return colours

    @torch.no_grad()
    def pixels(self, v: Tensor, size: tuple[int, int]) -> Tensor:
        """Return images of vectors v as uint8 (n, channels, *size), resized and then rounded."""
        images = (self.synthesis(v) * 127.5 + 128).clamp(0, 255)
        resized = F.interpolate(images, size, mode="bilinear", antialias=True)
        return resized.round().clamp(0, 255).to(torch.uint8)


def untrained(channels: int, size: tuple[int, int]) -> StyleGAN:
    """Return a generator with random weights for images (channels, *size)."""
    levels = max(1, math.ceil(math.log2(max(size) / FIRST)) + 1)
    return StyleGAN(channels, LATENT, LATENT, WIDTH, levels)


def load(path: str, channels: int, what: str) -> StyleGAN:
    """Return the generator in a .safetensors file, which has the state dict of a ``StyleGAN``.

    Its sizes follow from the shapes. ``what`` names the setting in an error. Raises ``ValueError``,
    one line, for a file that is missing, of another kind, or for other channels.
    """
    name = f"{what} = {path!r}"
    try:
        state, _ = model_file.read(Path(path).expanduser())
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror or error}") from None
    except Damaged as error:
        raise ValueError(f"{name}: {error}") from None
    try:
        with without_values():
            net = _like(state, channels)
        tree.check_like(state, net.state_dict(), "it")
    except (KeyError, ValueError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{name} is no StyleGAN for {channels} channels: {why}") from None
    net.load_state_dict(state, assign=True)
    return net


def _like(state: StateDict, channels: int) -> StyleGAN:
    """Return a generator of the shapes in ``state``; ``KeyError``, ``ValueError`` if impossible."""
    levels = sum(f"levels.{i}.weight" in state for i in range(LEVELS + 1))
    if not 0 < levels <= LEVELS:
        raise ValueError(f"it has {levels} levels, from 1 to {LEVELS} are possible")
    linear, const = state["layers.0.weight"], state["const"]
    if linear.dim() != 2 or const.dim() != 4 or not (linear.numel() and const.numel()):
        raise ValueError(f"it has shapes {tuple(linear.shape)} and {tuple(const.shape)}")
    vector, latent = linear.shape
    return StyleGAN(channels, latent, vector, const.shape[1], levels)
