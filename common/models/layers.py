"""Components of architectures: widths, stems, norms, stages of blocks and initial weights."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, final

from torch import nn

from common.data.kinds import Shape as Shape

Norm = Callable[[int], nn.Module]  #: channels to a layer over (n, channels, ...)

Stem = Literal["imagenet", "cifar"]
"""First layers of an ImageNet network. ``imagenet`` keeps the published architecture, which reduces
32×32 pixels to one. ``cifar`` starts with a 3×3 convolution of stride 1 and omits the first
pooling."""

FEWEST = 4  #: smallest number of channels after a width factor below 1


@final
class RoundedUp(float):
    """Width factor that rounds channels up and allows fewer than 4, as in HeteroFL."""


def scale(channels: int, factor: float, multiple: int = 1) -> int:
    """Return ``channels`` × ``factor``, rounded to a multiple; at least min(4, ``channels``).

    Factor 1 changes nothing, so that the papers' parameter counts hold exactly. ``RoundedUp``
    gives ⌈channels × factor⌉, or the next multiple.
    """
    if factor == 1:
        return channels
    if isinstance(factor, RoundedUp):
        return multiple * math.ceil(channels * factor / multiple - 1e-9)
    rounded = multiple * round(channels * factor / multiple)
    return max(rounded, min(channels, FEWEST))


def single(channels: int) -> nn.Module:
    """Return GroupNorm with one channel per group, as in FedKF (``num_groups = channels``).

    This is instance norm with an affine map. It needs feature maps of more than one pixel.
    """
    return nn.GroupNorm(channels, channels)


def sixteen(channels: int) -> nn.Module:
    """Return GroupNorm with 16 groups, or the greatest common divisor of 16 and ``channels``."""
    return nn.GroupNorm(math.gcd(16, channels), channels)


def first_convolution(conv: nn.Conv2d, channels: int, stem: Stem) -> nn.Conv2d:
    """Return ``conv``, or a new one if channels or stem differ, initialised by fan out (He)."""
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
    """Return one stage for each of ``widths`` with the number of blocks in ``counts``.

    ``block`` (input channels, output channels, stride) builds a block. Every stage but the first
    starts with stride 2. ``inputs``: channels before the first stage.
    """
    sequences = []
    for stage, (outputs, count) in enumerate(zip(widths, counts, strict=True)):
        stack = [block(inputs, outputs, 1 if stage == 0 else 2)]
        stack += [block(outputs, outputs, 1) for _ in range(count - 1)]
        sequences.append(nn.Sequential(*stack))
        inputs = outputs
    return sequences


def he_convolutions(model: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / (k c_out)), k weights in a kernel."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def he_fan_out(model: nn.Module) -> None:
    """Initialise convolutions ~ N(0, 2 / (k c_out)), norms with 1 and 0, linear biases with 0.

    He et al., "Delving deep into rectifiers", equation 14, as in FedKF, FedDF and Wide ResNet.
    """
    he_convolutions(model)
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def normalisations(model: nn.Module) -> list[nn.Module]:
    """Return the BatchNorm and GroupNorm layers of ``model``."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
    return [module for module in model.modules() if isinstance(module, kinds)]
