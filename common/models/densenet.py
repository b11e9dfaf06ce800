"""DenseNets for CIFAR: three blocks, plain or with bottlenecks and compression (BC).

Huang et al., "Densely connected convolutional networks", sections 3 and 4.2.
"""

from typing import final

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier, pooled
from common.models.layers import Shape, he_fan_out, scale


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
        self, shape: Shape, classes: int, factor: float, *, depth: int, growth: int, bc: bool
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
