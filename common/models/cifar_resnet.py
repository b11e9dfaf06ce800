"""ResNets for small images: a 3×3 stem and three stages at full, half and quarter resolution.

Depth 6n + 2 with n blocks per stage (He et al., "Deep residual learning", section 4.2). FedDF uses
16-32-64 channels, FedKF a wide 64-128-256 ResNet-8 with GroupNorm (FedKF's code; its conv - norm -
ReLU order and initialisation are followed).
"""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, pooled
from common.models.initialise import he_fan_out
from common.models.norm import Norm, batch
from common.models.width import scale

Shortcut = Literal["projection", "padding"]


@final
class Padding(nn.Module):
    """The parameter-free shortcut (option A): every second pixel, new channels zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.extra = outputs - inputs
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


@final
class Block(nn.Module):
    """conv - norm - ReLU - conv - norm, plus the shortcut, then ReLU."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: Norm, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample: nn.Module
        if stride == 1 and inputs == outputs:
            self.downsample = nn.Identity()
        elif shortcut == "padding":
            self.downsample = Padding(inputs, outputs, stride)
        else:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.downsample(x))


@final
class CifarResNet(Classifier):
    """``depth`` 6n + 2; the features are the last stage's mean, as many as its channels."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        factor: float,
        *,
        depth: int,
        first: int = 16,
        norm: Norm = batch,
        shortcut: Shortcut = "projection",
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        assert rest == 0, depth
        widths = [scale(first * 2**stage, factor) for stage in range(3)]
        self.conv1 = nn.Conv2d(shape[0], widths[0], 3, 1, 1, bias=False)
        self.bn1 = norm(widths[0])
        stages = []
        inputs = widths[0]
        for stage, outputs in enumerate(widths):
            first_stride = 1 if stage == 0 else 2
            stack = [Block(inputs, outputs, first_stride, norm, shortcut)]
            stack += [Block(outputs, outputs, 1, norm, shortcut) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(*stack))
            inputs = outputs
        self.layer1, self.layer2, self.layer3 = stages
        self.head = nn.Linear(inputs, classes)
        he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return pooled(self.layer3(self.layer2(self.layer1(x))))
