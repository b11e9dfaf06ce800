"""Classifiers by the angle to fixed directions: a simplex equiangular tight frame (ETF)."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.classifier import Classifier, Wrapper


def simplex(classes: int, generator: torch.Generator) -> Tensor:
    """Return C unit vectors m_c, as rows [C, C], with ⟨m_i, m_j⟩ = −1/(C − 1) for i ≠ j, C ≥ 2.

    They are the columns of √(C/(C−1)) P (I − 11ᵀ/C) with a random orthogonal P [C, C].
    """
    uniform = torch.rand(classes, classes, generator=generator, dtype=torch.float64)
    P, _ = torch.linalg.qr(uniform)
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    rows: Tensor = (math.sqrt(classes / (classes - 1)) * P @ centred).T.float().contiguous()
    return rows


@final
class Simplex(Wrapper):
    """Classifier whose logits are the cosines of the logits of ``net`` and C ``directions`` [C, C].

    FedKTL (Zhang et al., CVPR 2024).
    """

    directions: Tensor

    def __init__(self, net: Classifier, directions: Tensor) -> None:
        super().__init__(net)
        self.head = net.head
        self.register_buffer("directions", directions.to(net.head.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.net(x)), self.directions)


def new_transformer(classes: int, width: int) -> nn.Sequential:
    """Return FedKTL's map from projections [n, C] to a generator's latent vectors [n, ``width``].

    Linear(C, C), BatchNorm, ReLU, Linear(C, width), as in the released code.
    """
    first, last = nn.Linear(classes, classes), nn.Linear(classes, width)
    return nn.Sequential(first, nn.BatchNorm1d(classes), nn.ReLU(), last)
