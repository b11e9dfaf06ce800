"""Multi-layer perceptrons: two hidden layers for small images, and FedORION's toys for 2-D points.

Every layer but the last is followed by ReLU and then BatchNorm, as in FedORION, Figure 1.
"""

from __future__ import annotations

import math
from typing import final

from torch import Tensor, nn

from common.models.classifier import Classifier
from common.models.width import scale


@final
class MLP(Classifier):
    """Flattened input, hidden layers of the given widths; the last one's are the features."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        factor: float,
        *,
        hidden: tuple[int, ...],
    ) -> None:
        super().__init__()
        inputs = math.prod(shape)
        layers: list[nn.Module] = []
        for outputs in (scale(width, factor) for width in hidden):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.BatchNorm1d(outputs)]
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x.flatten(1))
        return features
