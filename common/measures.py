"""Measures of models: what a score is called, its range, its direction, and how clients combine.

This module imports no torch, so that lists and checks of settings are quick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

ObjectiveName = Literal["classes", "labels", "number"]
"""Name of what is learnt (``common/objectives.py``)."""
RegressionLoss = Literal["mse", "huber"]
Values = Mapping[str, float | None]  #: by measure; None where the samples do not define it


@final
@dataclass(frozen=True)
class Measure:
    """A score of models: its name in files, in words, its range and its direction."""

    name: str
    title: str
    least: float = 0.0
    most: float = 1.0
    higher: bool = True  #: whether a larger value is better
    squares: bool = False  #: whether clients combine by the root of the mean square, not the mean

    def better(self, new: float, old: float) -> bool:
        """Return whether ``new`` is better than ``old``."""
        return new > old if self.higher else new < old

    def reaches(self, value: float, target: float) -> bool:
        """Return whether ``value`` is at least as good as ``target``."""
        return value >= target if self.higher else value <= target

    def best(self, values: Sequence[float]) -> float:
        """Return the best of ≥ 1 values."""
        return max(values) if self.higher else min(values)

    def worst(self, values: Sequence[float]) -> float:
        """Return the worst of ≥ 1 values."""
        return min(values) if self.higher else max(values)

    def combined(self, values: Sequence[float], sizes: Sequence[int]) -> float:
        """Return the score over ≥ 1 clients, weighted by their numbers of test samples.

        Of accuracies it is the score of all their samples together, and so it is of root mean
        squares. Of AUC, F1 and R² it is the mean over clients, which pooled samples would not give.
        """
        powers = np.square(values) if self.squares else np.asarray(values, dtype=np.float64)
        mean = float(np.average(powers, weights=np.asarray(sizes, dtype=np.float64)))
        return math.sqrt(mean) if self.squares else mean

    def text(self, value: float | None, digits: int = 1) -> str:
        """Return a value for people: shares in percent, others as numbers."""
        if value is None or math.isnan(value):
            return "–"
        if self is ACCURACY:
            return f"{100 * value:.{digits}f} %"
        return f"{value:.{digits + 2}f}"

    def check(self, key: str, value: float) -> None:
        """Raise ``ValueError``, one line, for a setting ``key`` outside the range."""
        if not self.least <= value <= self.most:
            low = "any number" if math.isinf(self.least) else f"{self.least:g}"
            raise ValueError(
                f"{key} = {value:g} is not allowed with {self.title}; allowed: {low} to "
                f"{self.most:g}"
            )


ACCURACY = Measure("accuracy", "accuracy")
MACRO_AUC = Measure("macro_auc", "macro AUC")
MACRO_F1 = Measure("macro_f1", "macro F1")
R2 = Measure("r2", "R²", least=-math.inf)
RMSE = Measure("rmse", "RMSE", most=math.inf, higher=False, squares=True)
MEASURES = {m.name: m for m in (ACCURACY, MACRO_AUC, MACRO_F1, R2, RMSE)}
