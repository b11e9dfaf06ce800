"""What paired numbers decide about a claim: an interval against the region that the claim names.

A claim is a region of the real line: "a above b" is everything above 0, "comparable" is what lies
within a margin, "by 150 %" is a stated range. Seed by seed two rows give one number each. The claim
holds if the 95 % interval of their mean (Student's t) lies inside the region, it does not hold if
the interval lies outside, and else it is undecided.

The first five seeds decide. Only if they do not, and there are ten, the first ten do.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from scipy.special import stdtr

from deploy.report.interval import LEVEL, half_width

SEEDS, EXTENDED = 5, 10


class Verdict(StrEnum):
    """What the recorded runs say about a claim."""

    HOLDS = "holds here"
    OPPOSITE = "does not hold here"
    UNDECIDED = "undecided"
    OUT_OF_REACH = "out of reach"


@final
@dataclass(frozen=True)
class Region:
    """Open: ``low`` < x < ``high``; either may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"the range [{self.low:g}, {self.high:g}] is empty")


@final
@dataclass(frozen=True)
class Decision:
    """``mean`` ± ``half`` over ``seeds`` paired numbers; None where there are fewer than two.

    ``p``: the smallest α at which the 1 − α interval gives a verdict, so that p < 0.05 is the
    verdict at 95 %; None with fewer than five seeds, which decide nothing.
    """

    verdict: Verdict
    seeds: int
    mean: float | None
    half: float | None
    p: float | None


def decide(numbers: Sequence[float], region: Region) -> Decision:
    """The verdict of one number for each seed, in the order of the seeds.

    Raises ``ValueError`` for a number that is not finite.
    """
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a seed's number is not finite: a target that it never reached?")
    first = _decided(numbers[:SEEDS], region)
    if first.verdict is Verdict.UNDECIDED and len(numbers) >= EXTENDED:
        return _decided(numbers[:EXTENDED], region)
    return first


def _decided(numbers: Sequence[float], region: Region) -> Decision:
    n, half = len(numbers), half_width(numbers)
    mean = statistics.fmean(numbers) if numbers else None
    if mean is None or half is None or n < SEEDS:
        return Decision(Verdict.UNDECIDED, n, mean, half, None)
    error = statistics.stdev(numbers) / math.sqrt(n)
    inside = region.low < mean < region.high
    if inside:  # both ends of the region must be outside the interval
        p = max(_level(mean - region.low, error, n), _level(region.high - mean, error, n))
    else:
        p = _level(max(region.low - mean, mean - region.high), error, n)
    decided = Verdict.HOLDS if inside else Verdict.OPPOSITE
    return Decision(decided if p < 1 - LEVEL else Verdict.UNDECIDED, n, mean, half, p)


def _level(distance: float, error: float, n: int) -> float:
    """The α at which an interval of n numbers just reaches so far from its middle."""
    if distance <= 0:
        return 1.0
    if error == 0 or math.isinf(distance):
        return 0.0
    return float(2 * stdtr(n - 1, -distance / error))


def holm(levels: Sequence[float | None], alpha: float = 1 - LEVEL) -> list[bool]:
    """Which of the tests are still decided where all of them are right together at 1 − ``alpha``.

    ``levels``: each test's p; None counts as a test that was not made. Holm, A simple sequentially
    rejective multiple test procedure, 1979.
    """
    made = sorted((p, i) for i, p in enumerate(levels) if p is not None)
    kept = [False] * len(levels)
    for rank, (p, i) in enumerate(made):
        if p >= alpha / (len(made) - rank):
            break
        kept[i] = True
    return kept


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a sentence that claims all of several things."""
    if not verdicts:
        return Verdict.UNDECIDED
    if Verdict.OPPOSITE in verdicts:
        return Verdict.OPPOSITE
    return Verdict.HOLDS if set(verdicts) == {Verdict.HOLDS} else Verdict.UNDECIDED
