"""Numbers about a run: accuracy over rounds, rounds to a target, fairness over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np


class Accuracy(TypedDict):
    final: float
    best: float
    last10: float


def over_rounds(accuracies: Sequence[float]) -> Accuracy:
    """Final, best, and mean of the last ten (fewer if there are fewer) of ≥ 1 accuracies."""
    return Accuracy(
        final=accuracies[-1], best=max(accuracies), last10=float(np.mean(accuracies[-10:]))
    )


def rounds_to(accuracies: Sequence[float], target: float, window: int = 1) -> int | None:
    """First round (from 1) at which the mean of the last ``window`` accuracies reaches ``target``.

    None if it never does. ``window = 1`` is the first hit, as papers count; 5 withstands luck.
    """
    for t in range(window, len(accuracies) + 1):
        if float(np.mean(accuracies[t - window : t])) >= target:
            return t
    return None


class Fairness(TypedDict):
    amp: float
    fm: float
    wlp: float


def fairness(accuracies: Sequence[float], sizes: Sequence[int]) -> Fairness:
    """AMP, FM and WLP of ≥ 1 clients' accuracies in [0, 1] (FedKF, section IV-A).

    AMP: mean weighted by test samples; FM: population variance; WLP: the worst client.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    return Fairness(
        amp=float(np.average(values, weights=np.asarray(sizes, dtype=np.float64))),
        fm=float(values.var()),
        wlp=float(values.min()),
    )
