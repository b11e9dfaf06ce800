"""Interface of every architecture: features, a linear head, and for some a common split.

Knowledge transfer needs more than logits: MOON and FedProto compare features, FedKF's generator
uses activations, and FedIN trains the intermediate layers of a network separately.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PROJECTED = 256  #: number of features after a projection


class Classifier(nn.Module, ABC):
    """Network whose logits are a linear function of its features."""

    spec: str = ""  #: spec that built it, such as ``resnet8`` or ``resnet18@0.25``
    head: nn.Linear  #: d features to C logits
    tied: ClassVar[bool] = False  #: whether the head's weights are those of the input layer too
    targets: tuple[str, ...] = ()
    """Layers with adapters unless ``adapter.targets`` names others; empty: all but the head."""
    entries: tuple[str, ...] = ()  #: names of the base's entries, of a network with adapters
    fresh: tuple[str, ...] = ()  #: further layers that adapters leave to be trained whole

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Return the head's inputs, features (n, d), for samples (n, C, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) for samples (n, C, ...)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def within(self) -> dict[str, Classifier]:
        """Return classifiers inside this one by name, such as exits; they are scored separately."""
        return {}

    def with_activations(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, classes) and activations (n, a) for DAFL's and FedKF's loss.

        The activations are the features, except in LeNet-5, where they are the 120 outputs of the
        last convolution (FedKF, section IV-C and its released code).
        """
        features = self.features(x)
        return self.head(features), features


class Wrapper(Classifier, ABC):
    """Classifier with the features of another one, ``net``."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net, self.spec = net, net.spec

    def features(self, x: Tensor) -> Tensor:
        return self.net.features(x)


@final
class Projected(Classifier):
    """Classifier whose head reads a projection of the features, d to d to 256, as in MOON.

    Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021. As in the released code, the
    projection is part of the classifier and not only an input of the loss.
    """

    def __init__(self, base: Classifier) -> None:
        """Remove the head of ``base`` and add the projection and a new head."""
        super().__init__()
        d, classes = base.head.in_features, base.head.out_features
        del base.head
        self.base, self.targets = base, base.targets
        self.fresh = ("projection", *(f"base.{name}" for name in base.fresh))
        self.projection = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, PROJECTED))
        self.head = nn.Linear(PROJECTED, classes)

    def features(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(self.base.features(x))
        return projected


@final
class Pooled(Classifier):
    """Classifier whose head reads K features: adaptive average pooling of the network's d features.

    Feature j is the mean of features ⌊jd/K⌋ … ⌈(j+1)d/K⌉ − 1, so that entries repeat where K > d.
    There are no parameters besides the new head. HtFLlib (Zhang et al., KDD 2025) gives all its
    networks a common width in this way. torch's own pooling has no deterministic gradient on a GPU,
    so that a product with a matrix computes the means.
    """

    means: Tensor  #: [d, K], columns that sum to 1

    def __init__(self, base: Classifier, width: int) -> None:
        """Remove the head of ``base`` and add one with ``width`` = K inputs."""
        super().__init__()
        d, classes = base.head.in_features, base.head.out_features
        del base.head
        self.base, self.targets = base, base.targets
        self.fresh = tuple(f"base.{name}" for name in base.fresh)
        self.register_buffer("means", _means(d, width), persistent=False)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.base.features(x) @ self.means


def _means(d: int, width: int) -> Tensor:
    """Return the matrix [d, width] that averages d features as ``adaptive_avg_pool1d`` does."""
    means = torch.zeros(d, width)
    for j in range(width):
        first, end = j * d // width, -(-(j + 1) * d // width)
        means[first:end, j] = 1 / (end - first)
    return means


class Split(Classifier):
    """Network split into extractor, intermediate layers and classifier (FedIN, section III).

    ``intermediate_prefixes`` name the intermediate layers, each with a dot behind, in their order.

    ``forward(x) == classifier(intermediate(extractor(x)))``. Within a family s_in and s_out have
    the same shapes at every depth, so that (s_in, s_out) of one network can train the intermediate
    layers of another.
    """

    intermediate_prefixes: ClassVar[tuple[str, ...]]
    classifier_prefixes: ClassVar[tuple[str, ...]] = ("head.",)

    @abstractmethod
    def extractor(self, x: Tensor) -> Tensor:
        """Return s_in (n, c, ...) for samples (n, C, ...)."""

    def intermediate(self, s_in: Tensor) -> Tensor:
        """Return s_out (n, c', ...) for s_in (n, c, ...)."""
        for prefix in self.intermediate_prefixes:
            s_in = self.get_submodule(prefix.rstrip("."))(s_in)
        return s_in

    def classifier(self, s_out: Tensor) -> Tensor:
        """Return logits (n, classes) for s_out (n, c', ...)."""
        logits: Tensor = self.head(pooled(s_out))
        return logits

    def features(self, x: Tensor) -> Tensor:
        return pooled(self.intermediate(self.extractor(x)))

    @classmethod
    def part(cls, key: str) -> Literal["extractor", "intermediate", "classifier"]:
        """Return the part that contains a state-dict key such as ``layer2.1.conv1.weight``."""
        if key.startswith(cls.intermediate_prefixes):
            return "intermediate"
        return "classifier" if key.startswith(cls.classifier_prefixes) else "extractor"


def pooled(maps: Tensor) -> Tensor:
    """Return the mean (n, c) of every feature map of ``maps`` (n, c, ...).

    Maps have two axes (images), one (signals) or none (tables).
    """
    if maps.ndim == 4:
        return F.adaptive_avg_pool2d(maps, 1).flatten(1)
    return maps.flatten(2).mean(2) if maps.ndim == 3 else maps
