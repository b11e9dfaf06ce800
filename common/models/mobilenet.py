"""MobileNetV2, torchvision's, with a 3×3 stem of stride 2 (as published) or 1 (``cifar``)."""

from __future__ import annotations

from typing import final

from torch import Tensor

from common.models import pretrained as weights
from common.models.classifier import Classifier, pooled
from common.models.stem import Stem, first_convolution


@final
class MobileNetV2(Classifier):
    """1280 features, after dropout 0.2; the width factor is torchvision's ``width_mult``."""

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

        net = torchvision.models.MobileNetV2(num_classes=classes, width_mult=factor)
        net.features[0][0] = first_convolution(net.features[0][0], shape[0], stem)
        self.trunk = net.features
        self.dropout, self.head = net.classifier
        if pretrained is not None:
            weights.load(self, pretrained, ("features.", "trunk."))

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.dropout(pooled(self.trunk(x)))
        return features
