"""DenseNets: the paper's own for CIFAR (three blocks, plain or BC) and torchvision's DenseNet-121.

Huang et al., "Densely connected convolutional networks", sections 3 and 4.2.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from common.models import pretrained as weights
from common.models.classifier import Classifier, pooled
from common.models.initialise import he_fan_out
from common.models.stem import Stem, first_convolution
from common.models.width import scale


@final
class Layer(nn.Module):
    """norm - ReLU - conv adding ``growth`` channels, after a bottleneck of 4 × growth if wanted."""

    def __init__(self, inputs: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        if bottleneck:
            steps += [
                nn.BatchNorm2d(inputs),
                nn.ReLU(),
                nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            ]
            inputs = 4 * growth
        steps += [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, 1, 1, bias=False)]
        self.steps = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.steps(x)], 1)


@final
class CifarDenseNet(Classifier):
    """DenseNet-depth-growth; ``bc``: bottlenecks, and transitions that halve the channels."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        factor: float,
        *,
        depth: int,
        growth: int,
        bc: bool,
    ) -> None:
        super().__init__()
        layers, rest = divmod(depth - 4, 6 if bc else 3)
        assert rest == 0, depth
        growth = scale(growth, factor)
        channels = 2 * growth if bc else scale(16, factor)
        self.conv1 = nn.Conv2d(shape[0], channels, 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        for block in range(3):
            for _ in range(layers):
                blocks.append(Layer(channels, growth, bc))
                channels += growth
            if block < 2:
                after = channels // 2 if bc else channels
                convolution = nn.Conv2d(channels, after, 1, bias=False)
                norm = nn.BatchNorm2d(channels)
                blocks.append(nn.Sequential(norm, nn.ReLU(), convolution, nn.AvgPool2d(2)))
                channels = after
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)
        he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        return pooled(torch.relu(self.bn(self.blocks(self.conv1(x)))))


@final
class DenseNet121(Classifier):
    """torchvision's: growth 32, blocks of 6, 12, 24 and 16 layers, 1024 features."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        factor: float,
        *,
        stem: Stem,
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        from common.vision import torchvision

        net = torchvision.models.DenseNet(
            growth_rate=scale(32, factor),
            num_init_features=scale(64, factor),
            num_classes=classes,
        )
        net.features.conv0 = first_convolution(net.features.conv0, shape[0], stem)
        if stem == "cifar":
            net.features.pool0 = nn.Identity()
        self.trunk = net.features
        self.head = net.classifier
        if pretrained is not None:
            weights.load(self, pretrained, ("features.", "trunk."))

    def features(self, x: Tensor) -> Tensor:
        return pooled(torch.relu(self.trunk(x)))
