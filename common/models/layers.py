"""What architectures are made of: widths, stems, norms, stages of blocks and initial weights."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, final

from torch import nn

Shape = tuple[int, int, int]  #: (C, H, W) of an image
Norm = Callable[[int], nn.Module]  #: channels to a layer over (n, channels, h, w)

Stem = Literal["imagenet", "cifar"]
"""How a network of ImageNet's meets images of 32 pixels: ``imagenet`` keeps the architecture as
published, which shrinks 32×32 to one pixel; ``cifar`` starts with a 3×3 convolution of stride 1 and
drops the first pooling."""

FEWEST = 4  #: channels that a width factor below 1 never goes under


@final
class RoundedUp(float):
    """A width factor by which channels are rounded up and may be fewer than 4, as in HeteroFL."""


def scale(channels: int, factor: float, multiple: int = 1) -> int:
    """``channels`` × ``factor``, rounded to a multiple; at least 4, unless it started smaller.

    Factor 1 changes nothing, so the counts of the papers hold exactly. Under ``RoundedUp`` it is
    ⌈channels × factor⌉, or the next multiple.
    """
    if factor == 1:
        return channels
    if isinstance(factor, RoundedUp):
        return multiple * math.ceil(channels * factor / multiple - 1e-9)
    rounded = multiple * round(channels * factor / multiple)
    return max(rounded, min(channels, FEWEST))


def single(channels: int) -> nn.Module:
    """GroupNorm with one channel per group, FedKF's choice (``num_groups = channels``).

    This is instance norm with an affine map; it needs feature maps of more than one pixel.
    """
    return nn.GroupNorm(channels, channels)


def sixteen(channels: int) -> nn.Module:
    """GroupNorm of 16 groups, or of the most that divide both 16 and ``channels``."""
    return nn.GroupNorm(math.gcd(16, channels), channels)


def first_convolution(conv: nn.Conv2d, channels: int, stem: Stem) -> nn.Conv2d:
    """``conv``, or where channels or stem differ a fresh one, initialised by fan out (He)."""
    if stem == "imagenet" and conv.in_channels == channels:
        return conv
    kernel, stride = (3, 1) if stem == "cifar" else (conv.kernel_size[0], conv.stride[0])
    fresh = nn.Conv2d(channels, conv.out_channels, kernel, stride, kernel // 2, bias=False)
    he_convolutions(fresh)
    return fresh


def stages(
    block: Callable[[int, int, int], nn.Module],
    inputs: int,
    widths: Sequence[int],
    counts: Sequence[int],
) -> list[nn.Sequential]:
    """One stage for each of ``widths``, of as many blocks as ``counts`` says.

    ``block`` (channels in, channels out, stride) makes one; every stage but the first begins with
    stride 2. ``inputs``: channels before the first.
    """
    made = []
    for stage, (outputs, count) in enumerate(zip(widths, counts, strict=True)):
        stack = [block(inputs, outputs, 1 if stage == 0 else 2)]
        stack += [block(outputs, outputs, 1) for _ in range(count - 1)]
        made.append(nn.Sequential(*stack))
        inputs = outputs
    return made


def he_convolutions(model: nn.Module) -> None:
    """Weights of convolutions ~ N(0, 2 / (k² c_out)); everything else stays as it is."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def he_fan_out(model: nn.Module) -> None:
    """Convolutions ~ N(0, 2 / (k² c_out)), norms 1 and 0, linear biases 0.

    He et al., "Delving deep into rectifiers", equation 14, as FedKF, FedDF and Wide ResNet use it.
    """
    he_convolutions(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def normalisations(model: nn.Module) -> list[nn.Module]:
    """The layers of ``model`` that normalise: BatchNorm and GroupNorm."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
    return [module for module in model.modules() if isinstance(module, kinds)]
