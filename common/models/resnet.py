"""ResNets of torchvision's basic blocks: ResNet-18 and 34, and the family 10, 14, 18, 22, 26.

The family is FedIN's: one stem and one set of stage widths, so that s_in (64×8×8 for 32×32 images)
and s_out (512×1×1) have one shape for all depths, and so that ``layer2.1.conv1`` means the same
layer in every network that has it (FedIN, section III; layer-wise aggregation matches these names).
State-dict keys are torchvision's, except that ``fc`` is ``head``.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from common.models import pretrained as weights
from common.models.classifier import Split
from common.models.stem import Stem
from common.models.width import scale


@final
class ResNet(Split):
    """Four stages of ``blocks`` basic blocks and 64, 128, 256, 512 channels."""

    intermediate_prefixes: ClassVar[tuple[str, ...]] = ("layer1.", "layer2.", "layer3.", "layer4.")

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        factor: float,
        *,
        blocks: tuple[int, int, int, int],
        stem: Stem,
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        from common.vision import torchvision

        basic = torchvision.models.resnet.BasicBlock
        widths = [scale(64 * 2**stage, factor) for stage in range(4)]
        self.maxpool: nn.Module
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(shape[0], widths[0], 7, 2, 3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1 = nn.Conv2d(shape[0], widths[0], 3, 1, 1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages = []
        inputs = widths[0]
        for stage, (outputs, count) in enumerate(zip(widths, blocks, strict=True)):
            downsample = None
            stride = 1 if stage == 0 else 2
            if stage > 0:
                convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
            stack = [basic(inputs, outputs, stride, downsample)]
            stack += [basic(outputs, outputs) for _ in range(count - 1)]
            stages.append(nn.Sequential(*stack))
            inputs = outputs
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if pretrained is not None:
            weights.load(self, pretrained)

    def extractor(self, x: Tensor) -> Tensor:
        s_in: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return s_in

    def intermediate(self, s_in: Tensor) -> Tensor:
        s_out: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(s_in))))
        return s_out
