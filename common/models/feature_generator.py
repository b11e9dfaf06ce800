"""FedGen's generator: a label and noise to features, not to images."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import seeds
from common.models.classifier import Classifier
from common.task import Task


@final
class FeatureGenerator(nn.Module):
    """(z [n, ``noise``], y [n]) to features [n, ``features``] ≥ 0, as classifiers' heads read them.

    Noise and one-hot label, one hidden layer with BatchNorm and ReLU, one layer with ReLU
    (Zhu et al. 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning").
    """

    def __init__(self, noise: int, classes: int, features: int, hidden: int) -> None:
        super().__init__()
        self.noise, self.classes = noise, classes
        self.fc = nn.Linear(noise + classes, hidden)
        self.bn = nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, features)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], dim=1)
        return torch.relu(self.out(torch.relu(self.bn(self.fc(x)))))

    def latents(
        self, n: int, kind: Literal["uniform", "normal"], generator: torch.Generator
    ) -> Tensor:
        """n noise vectors, in [0, 1) or standard normal, drawn on the device of ``generator``."""
        draw = torch.rand if kind == "uniform" else torch.randn
        return draw(n, self.noise, generator=generator, device=generator.device)


def new_feature_generator(task: Task, net: Classifier, noise: int, hidden: int) -> FeatureGenerator:
    """The generator all owners start from, of features in front of ``net``'s head."""
    with seeds.scope(task.seed, "init", "generator"):
        return FeatureGenerator(noise, task.num_classes, net.head.in_features, hidden)
