"""How far a mean over seeds may lie from the one over all seeds."""

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

LEVEL = 0.95


def half_width(values: Sequence[float]) -> float | None:
    """h of the 95 % interval mean ± h: t · s / √n, s the sample standard deviation of n values.

    t is the quantile of Student's distribution with n − 1 degrees of freedom. None below two
    values, or if one is not finite.
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    return t * statistics.stdev(values) / math.sqrt(n)


def mean_with_interval(values: Sequence[float], spec: str) -> str:
    """``82.94 ± 0.21``: the mean of values, and half of its interval where there is one.

    ``spec``: format of both numbers, ".2f".
    """
    half = half_width(values)
    return format(statistics.fmean(values), spec) + ("" if half is None else f" ± {half:{spec}}")
