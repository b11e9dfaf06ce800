"""Wide ResNets (Zagoruyko and Komodakis, section 2): pre-activation blocks, three groups."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier, pooled
from common.models.initialise import he_fan_out
from common.models.width import scale


@final
class Block(nn.Module):
    """norm - ReLU - conv, twice; where the shape changes, a 1×1 shortcut from the first ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = torch.relu(self.bn1(x))
        out: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(activated))))
        return out + (x if self.shortcut is None else self.shortcut(activated))


@final
class WideResNet(Classifier):
    """WRN-depth-widen: depth 6n + 4, widths 16, 16·widen, 32·widen, 64·widen."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, factor: float, *, depth: int, widen: int
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        assert rest == 0, depth
        stem = scale(16, factor)
        widths = [scale(channels * widen, factor) for channels in (16, 32, 64)]
        self.conv1 = nn.Conv2d(shape[0], stem, 3, 1, 1, bias=False)
        stages = []
        inputs = stem
        for stage, outputs in enumerate(widths):
            stack = [Block(inputs, outputs, 1 if stage == 0 else 2)]
            stack += [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(*stack))
            inputs = outputs
        self.layer1, self.layer2, self.layer3 = stages
        self.bn = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        he_fan_out(self)

    def features(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return pooled(torch.relu(self.bn(x)))
