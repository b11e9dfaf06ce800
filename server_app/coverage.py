"""Classes that no client holds: nobody can learn them, so the covered ones are scored apart."""

from __future__ import annotations

from typing import Any

import torch

from common.models.classifier import Classifier
from common.scoring import evaluate
from server_app.method import Method


def uncovered(method: Method[Any]) -> list[int]:
    """Classes of which no client of the census has a training sample, ascending."""
    held = {c for client in method.clients for c in client.peer.classes}
    return [c for c in range(method.dataset.num_classes) if c not in held]


def covered_accuracy(method: Method[Any], net: Classifier) -> float | None:
    """Accuracy on the test samples of covered classes; None if all classes are, or none is."""
    missing, data = uncovered(method), method.dataset
    if not missing or len(missing) == data.num_classes:
        return None
    kept = ~torch.isin(data.y_test, torch.tensor(missing))
    if not bool(kept.any()):
        return None
    x, y = data.x_test[kept], data.y_test[kept]
    return evaluate(net, x, y, data, method.config, bn=method.eval_bn).accuracy
