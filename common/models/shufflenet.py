"""ShuffleNetV2, torchvision's; ``cifar`` takes a stride-1 stem and no pooling, as FedDF does."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from common.models import pretrained as weights
from common.models.classifier import Classifier, pooled
from common.models.stem import Stem, first_convolution
from common.models.width import scale


@final
class ShuffleNetV2(Classifier):
    """1024 features; ``widths`` are the channels of stem, three stages and last convolution."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        factor: float,
        *,
        widths: tuple[int, int, int, int, int],
        stem: Stem,
        pretrained: str | None = None,
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
        if pretrained is not None:
            weights.load(self, pretrained)

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        return pooled(self.conv5(self.stage4(self.stage3(self.stage2(x)))))
