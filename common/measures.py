"""Measures of models: what a score is called, its range, its direction, and how clients combine.

This module imports no torch, so that lists and checks of settings are quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

ObjectiveName = Literal["classes", "labels", "number", "next-token"]
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
    scale: tuple[Callable[..., Any], Callable[..., Any]] = (np.asarray, np.asarray)
    """Functions before and after the mean of several clients' values."""

    def better(self, new: float, old: float) -> bool:
        """Return whether ``new`` is better than ``old``."""
        return new > old if self.higher else new < old

    def reaches(self, value: float, target: float) -> bool:
        """Return whether ``value`` is at least as good as ``target``."""
        return value >= target if self.higher else value <= target

    def best(self, values: Sequence[float]) -> float:
        """Return the best of ≥ 1 values."""
        return max(values) if self.higher else min(values)

    def combined(self, values: Sequence[float], sizes: Sequence[int]) -> float:
        """Return the score over ≥ 1 clients, weighted by their numbers of test samples.

        Of accuracies it is the score of all their samples together, and so it is of root mean
        squares, and of perplexities of texts with equally many tokens. Of AUC, F1 and R² it is the
        mean over clients, which pooled samples would not give.
        """
        there, back = self.scale
        shares = np.asarray(sizes, dtype=np.float64)
        return float(back(np.average(there(np.asarray(values, dtype=np.float64)), weights=shares)))

    @property
    def direction(self) -> Literal["higher", "lower"]:
        """Which values are better."""
        return "higher" if self.higher else "lower"

    @property
    def heading(self) -> str:
        """The title with a capital letter."""
        return self.title[0].upper() + self.title[1:]

    @property
    def meaning(self) -> str:
        """Range and direction in words; empty for the accuracy, which everybody knows."""
        if self is ACCURACY:
            return ""
        limits = f"{self.least:g} to {self.most:g}"
        if math.isinf(self.least):
            limits = f"at most {self.most:g}"
        elif math.isinf(self.most):
            limits = f"at least {self.least:g}"
        return f"{limits}, {self.direction} is better"

    def text(self, value: float | None, digits: int = 1) -> str:
        """Return a value for people: accuracies in percent, others as numbers.

        ``digits``: decimals of a percentage; other numbers have as many digits.
        """
        if value is None or not math.isfinite(value):
            return "–"
        if self in (ACCURACY, TOKEN_ACCURACY, EXACT_MATCH):
            return f"{100 * value:.{digits}f} %"
        places = digits + 2
        if self is RMSE:  # in the data's unit: as many digits in all
            places = max(places - math.floor(math.log10(abs(value) or 1)), 0)
        return f"{value:,.{places}f}"

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
RMSE = Measure("rmse", "RMSE", most=math.inf, higher=False, scale=(np.square, np.sqrt))
BITS_PER_BYTE = Measure("bits_per_byte", "bits per byte", most=math.inf, higher=False)
PERPLEXITY = Measure("perplexity", "perplexity", 1.0, math.inf, False, (np.log, np.exp))
TOKEN_ACCURACY = Measure("token_accuracy", "token accuracy")
EXACT_MATCH = Measure("exact_match", "exact match")
AUC, F1 = Measure("auc", "AUC"), Measure("f1", "F1")  #: of one label
_OF_TOKENS = (BITS_PER_BYTE, PERPLEXITY, TOKEN_ACCURACY, EXACT_MATCH)
MEASURES = {m.name: m for m in (ACCURACY, MACRO_AUC, MACRO_F1, R2, RMSE, AUC, F1, *_OF_TOKENS)}
