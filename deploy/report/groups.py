"""Runs that are compared: those that differ in nothing but the seed belong together.

Of such a group a page shows the mean over its seeds, and how far it may lie from the one over all
seeds.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from scipy.special import stdtrit

from deploy.report.read import Run, flat
from deploy.report.table import clean

LEVEL = 0.95  #: of an interval
MOST = 3  # settings in a label beside the method; more would not be read
PLACES = {
    *("out", "state-dir", "data.dir", "data.public-dir"),
    *("experiment", "runtime", "resume", "track"),
}
"""Settings that say where a run was and what it was called, and nothing about its numbers."""


@final
@dataclass(frozen=True)
class Group:
    """Runs of one setting, each with a seed of its own, and what they are called on a page."""

    name: str
    runs: Sequence[Run]

    @property
    def label(self) -> str:
        """The name, and how many seeds there are if there are several."""
        return f"{self.name}, {len(self.runs)} seeds" if self.several else self.name

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    @property
    def named(self) -> list[tuple[str, Run]]:
        """Every run with a label of its own."""
        if not self.several:
            return [(self.name, self.runs[0])]
        return [(f"{self.name}, seed {run.setting('seed')}", run) for run in self.runs]

    def values(self, of: Callable[[Run], float | None]) -> list[float]:
        """A number of each run; empty if one has none."""
        found = [of(run) for run in self.runs]
        return [value for value in found if value is not None] if None not in found else []


def named(groups: Sequence[Group]) -> list[tuple[str, Run]]:
    """Return every run of the groups with a label of its own."""
    return [each for group in groups for each in group.named]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean of ≥ 1 values and their sample standard deviation, 0 of a single one."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


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


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The runs in groups, in order of the first run of each; every name is another."""
    found: list[list[Run]] = []
    for run in runs:
        home = next((group for group in found if _belongs(run, group)), [])
        if not home:
            found.append(home)
        home.append(run)
    return [Group(name, group) for name, group in zip(_names(found), found, strict=True)]


def _belongs(run: Run, group: Sequence[Run]) -> bool:
    """Whether a run differs from those of a group in the seed and in nothing else."""
    own, seeds = _settings(run), [other.setting("seed") for other in group]
    return bool(own) and own == _settings(group[0]) and run.setting("seed") not in seeds


def _settings(run: Run) -> dict[str, object]:
    """What decides a run's numbers, but for the seed."""
    hidden = PLACES | {"seed"}
    return {name: value for name, value in flat(run.config).items() if name not in hidden}


def differences(groups: Sequence[Sequence[Run]]) -> dict[str, list[object]]:
    """Setting -> its value in each group (None: not set), for the settings that are not all equal.

    Of the seeds of a group all are named; places are left out.
    """
    configs = [flat(runs[0].config) for runs in groups]
    for config, runs in zip(configs, groups, strict=True):
        if len(runs) > 1:
            config["seed"] = ", ".join(str(run.setting("seed")) for run in runs)
    names = dict.fromkeys(name for config in configs for name in config if name not in PLACES)
    values = {name: [config.get(name) for config in configs] for name in names}
    return {n: v for n, v in values.items() if any(other != v[0] for other in v)}


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The method, and what differs or where it lies."""
    first = [runs[0] for runs in groups]
    methods = [run.name for run in first]
    shared = set.intersection(*(set(flat(run.config)) for run in first)) - {"method"}
    if any(len(runs) > 1 for runs in groups):
        shared -= {"seed"}
    told = {n: values for n, values in differences(groups).items() if n in shared}
    named = [
        ", ".join([m, *(f"{n.rpartition('.')[2]}={clean(v[i], 24)}" for n, v in told.items())])
        for i, m in enumerate(methods)
    ]
    placed = [f"{m} ({clean(run.path.name, 40)})" for m, run in zip(methods, first, strict=True)]
    paths = [clean(run.path, 160) for run in first]
    candidates = (methods, named if len(told) <= MOST else methods, placed, paths)
    return next((each for each in candidates if len(set(each)) == len(groups)), paths)
