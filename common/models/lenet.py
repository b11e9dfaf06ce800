"""LeNet-5 as FedKF uses it on EMNIST: ReLU, max pooling, no normalisation, 32×32 inside."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, pooled
from common.models.width import scale

SIDE = 32  #: pixels that the three 5×5 convolutions and two poolings reduce to one


def enlarge(x: Tensor, side: int = SIDE) -> Tensor:
    """Images (n, C, h, w), made at least ``side`` high and wide.

    Pixels are repeated by the largest whole factor that fits, then zeros are added around: 8×8
    becomes 32×32, 28×28 gets a margin of 2. Unlike interpolation, its gradient is deterministic on
    every device.
    """
    height, width = x.shape[-2:]
    repeat = max(1, side // max(height, width))
    if repeat > 1:
        x = x[:, :, :, None, :, None].expand(-1, -1, -1, repeat, -1, repeat)
        x = x.flatten(4).flatten(2, 3)
    height, width = max(0, side - x.shape[-2]), max(0, side - x.shape[-1])
    if height or width:
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
    return x


@final
class LeNet5(Classifier):
    """Three 5×5 convolutions (6, 16, 120) and 84 features; larger inputs end in a mean."""

    def __init__(self, shape: tuple[int, int, int], classes: int, factor: float) -> None:
        super().__init__()
        c1, c2, c3, hidden = (scale(c, factor) for c in (6, 16, 120, 84))
        self.conv1 = nn.Conv2d(shape[0], c1, 5)
        self.conv2 = nn.Conv2d(c1, c2, 5)
        self.conv3 = nn.Conv2d(c2, c3, 5)
        self.fc = nn.Linear(c3, hidden)
        self.head = nn.Linear(hidden, classes)

    def activations(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to the last convolution's outputs (n, 120)."""
        x = F.max_pool2d(torch.relu(self.conv1(enlarge(x))), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return pooled(torch.relu(self.conv3(x)))

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(self.activations(x)))

    def with_activations(self, x: Tensor) -> tuple[Tensor, Tensor]:
        activations = self.activations(x)
        return self.head(torch.relu(self.fc(activations))), activations
