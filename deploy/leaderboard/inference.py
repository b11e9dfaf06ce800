"""What differences between rows allow to conclude: possible positions, and signs of few pairs.

Both suppose that repetitions (seeds on the same partitions, or pairs of a partition and a seed) are
independent, and that means over a row's runs are nearly normal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import stdtr

from deploy.report.groups import half_width, holm, spread

DRAWS = 2000  #: simulated boards without differences
QUANTILE = 0.975
"""Level of c in ``positions``: at 95 %, 3 to 8 % of simulated boards of 3 to 38 rows with unequal
variances had a false position, at this one at most 5 %."""


@final
@dataclass(frozen=True)
class Position:
    """Possible positions of a row among the rows of a section, by one score.

    ``best``: 1 and the number of rows whose interval is above the row's; ``worst``: the number of
    all rows without those whose interval is below it. ``low``, ``high``: its interval.
    """

    best: int
    worst: int
    low: float
    high: float


def positions(values: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, Position]:
    """Return the possible positions of rows; all hold together with a probability of 95 %.

    ``values``: by row, its accuracies [n] in n > 1 independent repetitions, the same for all rows:
    a mean over partitions for each seed, or one for each pair of a partition and a seed.

    Rows have intervals mean ± c · s such that all differences of which the intervals do not overlap
    have the right sign with 95 % (Klein, Wright and Wieczorek, A joint confidence region for an
    overall ranking of populations, 2020; Mogstad, Romano, Shaikh and Wilhelm, Inference for ranks,
    2024). s estimates the deviation of a row's mean after what all rows of a repetition share. With
    few repetitions a small variance can be chance, so s² is at least the mean of the row's own
    variance and the rows' median. c is the quantile of max |difference| / (s + s') over all
    pairs in simulated boards whose rows are equal in truth, with variances as uncertain as ours.
    """
    if not values:
        return {}
    stacked = np.stack(list(values.values()))
    rows, n = stacked.shape
    means, spread = stacked.mean(axis=1), np.zeros(rows)
    if rows > 1:
        variance = _variances(stacked)
        if variance.any():
            draw = np.random.default_rng(seed)
            scale = np.sqrt(n * variance * (n - 1) / draw.chisquare(n - 1, (DRAWS, rows)))
            equal = draw.normal(size=(DRAWS, rows, n)) * scale[..., None]
            apart = _apart(equal.mean(axis=2), _scales(_variances(equal)))
            spread = float(np.quantile(apart, QUANTILE)) * _scales(variance)
    low, high = means - spread, means + spread
    return {
        name: Position(
            best=1 + int((low > high[i]).sum()),
            worst=rows - int((high < low[i]).sum()),
            low=float(low[i]),
            high=float(high[i]),
        )
        for i, name in enumerate(values)
    }


def _variances(values: np.ndarray) -> np.ndarray:
    """Return estimates [..., rows] of the variances of the means of ``values`` [..., rows, n].

    What all rows of a repetition share is no part of them. Two rows get half of the variance of
    their difference each.
    """
    *_, rows, n = values.shape
    rest = values - values.mean(axis=-1, keepdims=True)
    rest = rest - rest.mean(axis=-2, keepdims=True)
    return np.asarray(np.square(rest).sum(axis=-1) * rows / (rows - 1) / (n - 1) / n)


def _scales(variances: np.ndarray) -> np.ndarray:
    """Return s [..., rows] for the variances [..., rows] of the rows' means."""
    middle = np.median(variances, axis=-1, keepdims=True)
    return np.asarray(np.sqrt(np.maximum(variances, (variances + middle) / 2)))


def _apart(means: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the largest |difference| of two means over the sum of their scales, [boards]."""
    differences = np.abs(means[..., :, None] - means[..., None, :])
    sums = scales[..., :, None] + scales[..., None, :]
    return np.asarray((differences / sums).max(axis=(-2, -1)))


@final
@dataclass(frozen=True)
class Difference:
    """Difference of two rows: its mean, and half of its own 95 % interval (Student's t).

    ``decided``: whether its sign stays when those of all pairs are to be right together.
    """

    mean: float
    half: float
    decided: bool


def differences(pairs: Sequence[np.ndarray]) -> list[Difference]:
    """Return the differences of named pairs, of which at most 5 % of boards decide a wrong sign.

    ``pairs``: by pair, the differences [n] in n > 1 repetitions. Both signs of a pair are tests of
    their own, and all tests are corrected together (``holm``).
    """
    found, levels = list[tuple[float, float]](), list[float | None]()
    for values in (one.tolist() for one in pairs):
        (mean, deviation), half = spread(values), half_width(values)
        assert half is not None, "several repetitions, all finite"
        error = deviation / math.sqrt(len(values))
        t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
        above = float(stdtr(len(values) - 1, t))
        found.append((mean, half))
        levels += [1 - above, above]
    kept = holm(levels)
    signs = [any(kept[2 * i : 2 * i + 2]) for i in range(len(found))]
    return [Difference(*numbers, sign) for numbers, sign in zip(found, signs, strict=True)]
