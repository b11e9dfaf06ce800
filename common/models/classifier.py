"""What every architecture promises: features, a linear head, and for some a common split.

Knowledge transfer needs more of a model than its logits: MOON and FedProto compare features,
FedKF's generator looks at activations, FedIN trains the middle of a network on its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, final

from torch import Tensor, nn
from torch.nn import functional as F

PROJECTED = 256  #: features behind a projection


class Classifier(nn.Module, ABC):
    """A network whose logits are a linear function of its features."""

    spec: str = ""  #: the name it was built by, such as ``resnet8`` or ``resnet18@0.25``
    head: nn.Linear  #: d features to C logits

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to the features (n, d) that the head reads."""

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def within(self) -> dict[str, Classifier]:
        """Classifiers in this one by name, such as its exits, which are scored beside it."""
        return {}

    def with_activations(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, classes) and the activations (n, a) of DAFL's and FedKF's activation loss.

        The activations are the features, except in LeNet-5, where they are the 120 outputs of the
        last convolution (FedKF, section IV-C and its released code).
        """
        features = self.features(x)
        return self.head(features), features


@final
class Projected(Classifier):
    """A network whose head reads a projection of its features: d to d to 256, as in MOON.

    Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, as released: the projection
    is part of the classifier, not an appendix that only a loss sees.
    """

    def __init__(self, base: Classifier) -> None:
        """``base`` loses its head."""
        super().__init__()
        d, classes = base.head.in_features, base.head.out_features
        del base.head
        self.base = base
        self.projection = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, PROJECTED))
        self.head = nn.Linear(PROJECTED, classes)

    def features(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(self.base.features(x))
        return projected


class Split(Classifier):
    """A classifier cut into extractor, intermediate layers and classifier (FedIN, section III).

    ``forward(x) == classifier(intermediate(extractor(x)))``. Within one family s_in and s_out have
    one shape each, whatever the depth, so that one network's (s_in, s_out) can train another's
    intermediate layers.
    """

    intermediate_prefixes: ClassVar[tuple[str, ...]]
    classifier_prefixes: ClassVar[tuple[str, ...]] = ("head.",)

    @abstractmethod
    def extractor(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to s_in (n, c, h, w)."""

    @abstractmethod
    def intermediate(self, s_in: Tensor) -> Tensor:
        """s_in (n, c, h, w) to s_out (n, c', h', w')."""

    def classifier(self, s_out: Tensor) -> Tensor:
        """s_out (n, c', h', w') to logits (n, classes)."""
        logits: Tensor = self.head(pooled(s_out))
        return logits

    def features(self, x: Tensor) -> Tensor:
        return pooled(self.intermediate(self.extractor(x)))

    @classmethod
    def part(cls, key: str) -> Literal["extractor", "intermediate", "classifier"]:
        """Which of the three parts a state-dict key such as ``layer2.1.conv1.weight`` is in."""
        if key.startswith(cls.intermediate_prefixes):
            return "intermediate"
        return "classifier" if key.startswith(cls.classifier_prefixes) else "extractor"


def pooled(maps: Tensor) -> Tensor:
    """The mean of every feature map: (n, c, h, w) to (n, c)."""
    return F.adaptive_avg_pool2d(maps, 1).flatten(1)
