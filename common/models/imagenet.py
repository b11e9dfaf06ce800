"""torchvision's MobileNetV2, ShuffleNetV2 and DenseNet-121."""

from typing import final

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier, pooled
from common.models.layers import Shape, Stem, first_convolution, scale


@final
class MobileNetV2(Classifier):
    """1280 features, after dropout 0.2; the width factor is torchvision's ``width_mult``."""

    def __init__(self, shape: Shape, classes: int, factor: float, *, stem: Stem) -> None:
        super().__init__()
        from common.vision import torchvision

        net = torchvision.models.MobileNetV2(num_classes=classes, width_mult=factor)
        net.features[0][0] = first_convolution(net.features[0][0], shape[0], stem)
        self.trunk = net.features
        self.dropout, self.head = net.classifier

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.dropout(pooled(self.trunk(x)))
        return features


@final
class ShuffleNetV2(Classifier):
    """1024 features; ``widths`` are the channels of stem, three stages and last convolution.

    ``cifar`` takes no pooling, as FedDF does.
    """

    def __init__(
        self, shape: Shape, classes: int, factor: float, *, widths: tuple[int, ...], stem: Stem
    ) -> None:
        super().__init__()
        from common.vision import torchvision

        scaled = [scale(width, factor, multiple=2) for width in widths]
        net = torchvision.models.ShuffleNetV2([4, 8, 4], scaled, num_classes=classes)
        self.conv1 = net.conv1
        self.conv1[0] = first_convolution(net.conv1[0], shape[0], stem)
        self.maxpool = net.maxpool if stem == "imagenet" else nn.Identity()
        self.stage2, self.stage3, self.stage4 = net.stage2, net.stage3, net.stage4
        self.conv5 = net.conv5
        self.head = net.fc

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        return pooled(self.conv5(self.stage4(self.stage3(self.stage2(x)))))


@final
class DenseNet121(Classifier):
    """Growth 32, blocks of 6, 12, 24 and 16 layers, 1024 features."""

    def __init__(self, shape: Shape, classes: int, factor: float, *, stem: Stem) -> None:
        super().__init__()
        from common.vision import torchvision

        net = torchvision.models.DenseNet(
            growth_rate=scale(32, factor), num_init_features=scale(64, factor), num_classes=classes
        )
        net.features.conv0 = first_convolution(net.features.conv0, shape[0], stem)
        if stem == "cifar":
            net.features.pool0 = nn.Identity()
        self.trunk = net.features
        self.head = net.classifier

    def features(self, x: Tensor) -> Tensor:
        return pooled(torch.relu(self.trunk(x)))
