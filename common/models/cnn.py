"""Small CNNs for CPUs: a stem and 1, 2 or 3 equal middle stages, hence 2, 3 or 4 convolutions.

All depths share the shapes of s_in and s_out, and the state-dict keys of the shallower ones are
among those of the deeper, so the family serves FedIN and layer-wise aggregation at a small scale.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from common.models.classifier import Split
from common.models.initialise import he_fan_out
from common.models.width import scale


@final
class Stage(nn.Module):
    """3×3 convolution, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


@final
class CNN(Split):
    """s_in is 32 maps of half the input's side, s_out 64 maps of a quarter."""

    intermediate_prefixes: ClassVar[tuple[str, ...]] = ("layer1.",)

    def __init__(
        self, shape: tuple[int, int, int], classes: int, factor: float, *, depth: int
    ) -> None:
        super().__init__()
        stem, width = scale(32, factor), scale(64, factor)
        self.stem = Stage(shape[0], stem, 1)
        self.pool = nn.MaxPool2d(2)
        middle = [Stage(stem, width, 2)]
        middle += [Stage(width, width, 1) for _ in range(depth - 2)]
        self.layer1 = nn.Sequential(*middle)
        self.head = nn.Linear(width, classes)
        he_fan_out(self)

    def extractor(self, x: Tensor) -> Tensor:
        s_in: Tensor = self.pool(self.stem(x))
        return s_in

    def intermediate(self, s_in: Tensor) -> Tensor:
        s_out: Tensor = self.layer1(s_in)
        return s_out
