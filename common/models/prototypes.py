"""Predictors and generators of class prototypes."""

from typing import final

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier, Wrapper

NEVER = -1e9
"""Logit of a class without prototype."""
TINY = 1e-12
"""Smallest squared distance, because the square root has no gradient at 0."""


@final
class Nearest(Wrapper):
    """Classifier by the nearest prototype, of the features of ``net``.

    The logit of class c is −mean((f(x) − P_c)²), or −10⁹ where the prototype is not ``present``.
    ``prototypes``: [C, K], ``present``: bool [C]. FedProto (Tan et al., AAAI 2022), section
    "Model Inference".
    """

    prototypes: Tensor
    present: Tensor

    def __init__(self, net: Classifier, prototypes: Tensor, present: Tensor) -> None:
        super().__init__(net)
        self.head = net.head
        device = net.head.weight.device
        self.register_buffer("prototypes", prototypes.to(device))
        self.register_buffer("present", present.to(device))

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        apart = torch.stack([(features - P).square().mean(1) for P in self.prototypes], dim=1)
        return (-apart).masked_fill(~self.present, NEVER)


@final
class PrototypeGenerator(nn.Module):
    """Generator of trainable prototypes P̂ [C, K], one for each class: FedTGP's layers.

    Embedding(C, K), Linear(K, K), ReLU, Linear(K, K) (Zhang et al., AAAI 2024, released code).
    """

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, features)
        self.hidden = nn.Linear(features, features)
        self.out = nn.Linear(features, features)

    def forward(self) -> Tensor:
        prototypes: Tensor = self.out(torch.relu(self.hidden(self.embedding.weight)))
        return prototypes


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the Euclidean distances [n, C] of vectors a [n, K] and b [C, K]."""
    return ((a[:, None] - b).square().sum(2) + TINY).sqrt()


def largest_gap(rows: Tensor, present: Tensor, most: float) -> float:
    """Return FedTGP's margin δ = min(max_c gap_c, ``most``) of class means rows [C, K].

    gap_c is the Euclidean distance of a present class to the nearest other present class. With
    fewer than two present classes δ is ``most``. Zhang et al., AAAI 2024, equation 7, in the
    released code's form.
    """
    means = rows[present].double()
    if len(means) < 2:
        return most
    apart = (means[:, None] - means).square().sum(2).sqrt().fill_diagonal_(torch.inf)
    return min(float(apart.amin(1).max()), most)
