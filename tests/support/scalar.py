"""Federations with one weight w: client k minimises ½ (w − a_k)². Tests compute w by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.bases.global_copy import GlobalCopy
from common import models
from common.models import Architecture
from common.models.classifier import Classifier
from tests.support.tiny import TinyRun, under

PLAIN: dict[str, Any] = {"fleet": "scalar", **under("train", lr=0.1, momentum=0.0, steps=2)}
"""Settings: two steps of gradient descent with learning rate 0.1."""


class Scalar(Classifier):
    """Network with one weight w, initially 0, whose outputs are 0 for all images."""

    def __init__(self, shape: Sequence[int], classes: int, factor: float) -> None:
        super().__init__()
        self.classes, self.w = classes, nn.Parameter(torch.zeros(1))

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1] * 0

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).expand(-1, self.classes) + 0 * self.w


def descend(monkeypatch: pytest.MonkeyPatch, targets: Sequence[float]) -> None:
    """Add the architecture ``scalar``, and let client k's loss be ½ (w − targets_k)²."""

    def loss(self: GlobalCopy[Any, Any], request: Any, net: Classifier) -> Any:
        a = targets[self.participant.k]
        return lambda x, y: 0.5 * (net.w - a).square().sum()

    row = Architecture(Scalar, 1, "a test", (1, 8, 8), {"own": 1})
    monkeypatch.setitem(models.MODELS, "scalar", row)
    monkeypatch.setattr(GlobalCopy, "loss", loss)


def result(run: TinyRun) -> float:
    """Return the run's w."""
    return float(run.model["w"])


def kept(folder: Path, t: int, k: int, kind: str) -> Path:
    """Return the path of client k's state after round t."""
    return folder / "state" / "test" / str(k) / str(t) / f"{kind}.safetensors"
