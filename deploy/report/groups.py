"""Groups of runs in a comparison: runs that differ only in the seed form one group.

A page shows the mean over the seeds of a group and its 95 % confidence interval.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from scipy.special import stdtrit

from common.keys import marked
from common.settings.marks import Mark
from common.settings.section import dotted
from deploy.report.read import Run
from deploy.report.table import clean

LEVEL = 0.95  #: confidence level of an interval
LABEL_SETTINGS = 3  # most settings in a label beside the method, so that it stays readable
STARTED = frozenset(marked(Mark.STARTED))


@final
@dataclass(frozen=True)
class Group:
    """Runs with equal settings and different seeds, and their name on a page."""

    name: str
    runs: Sequence[Run]

    @property
    def label(self) -> str:
        """The name, followed by the number of seeds if there are several."""
        return f"{self.name}, {len(self.runs)} seeds" if self.several else self.name

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    @property
    def named(self) -> list[tuple[str, Run]]:
        """(label, run) for every run; each label is unique."""
        if not self.several:
            return [(self.name, self.runs[0])]
        return [(f"{self.name}, seed {run.setting('seed')}", run) for run in self.runs]

    def values(self, measure: Callable[[Run], float | None]) -> list[float]:
        """Return the measure of each run; an empty list if any run lacks it."""
        values = [measure(run) for run in self.runs]
        return [value for value in values if value is not None] if None not in values else []


Groups = Sequence[Group]


def named(groups: Groups) -> list[tuple[str, Run]]:
    """Return (label, run) for every run of the groups."""
    return [pair for group in groups for pair in group.named]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of ≥ 1 values and their sample standard deviation, 0 for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def half_width(values: Sequence[float]) -> float | None:
    """Return h of the 95 % confidence interval mean ± h: t · s / √n.

    s is the sample standard deviation of the n values, t the quantile of Student's distribution
    with n − 1 degrees of freedom. Return None for fewer than two values or a non-finite one.
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    return t * statistics.stdev(values) / math.sqrt(n)


def holm(levels: Sequence[float | None], alpha: float = 1 - LEVEL) -> list[bool]:
    """Return for each test whether it stays decided when all are to be right at 1 − ``alpha``.

    Holm, A simple sequentially rejective multiple test procedure, 1979.

    ``levels``: each test's p; None counts as a test that was not made.
    """
    ordered = sorted((p, i) for i, p in enumerate(levels) if p is not None)
    kept = [False] * len(levels)
    for rank, (p, i) in enumerate(ordered):
        if p >= alpha / (len(ordered) - rank):
            break
        kept[i] = True
    return kept


def mean_with_interval(values: Sequence[float], spec: str) -> str:
    """Return ``82.94 ± 0.21``: the mean of the values and the half-width of its interval, if any.

    ``spec``: format of both numbers, such as ".2f".
    """
    half = half_width(values)
    return format(statistics.fmean(values), spec) + ("" if half is None else f" ± {half:{spec}}")


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in the seed, in order of each group's first run.

    The groups' names are unique.
    """
    groups: list[list[Run]] = []
    for run in runs:
        members = next((group for group in groups if _belongs(run, group)), [])
        if not members:
            groups.append(members)
        members.append(run)
    return [Group(name, group) for name, group in zip(_names(groups), groups, strict=True)]


def _belongs(run: Run, group: Sequence[Run]) -> bool:
    """Return whether a run differs from the runs of a group only in the seed."""
    settings, seeds = _settings(run), [other.setting("seed") for other in group]
    return bool(settings) and settings == _settings(group[0]) and run.setting("seed") not in seeds


def _settings(run: Run) -> dict[str, object]:
    """Return the settings that affect a run's results, without the seed."""
    hidden = STARTED | {"seed"}
    return {name: value for name, value in dotted(run.config).items() if name not in hidden}


def differences(groups: Sequence[Sequence[Run]]) -> dict[str, list[object]]:
    """Return setting -> its value in each group (None: not set), for the settings that differ.

    All seeds of a group are listed; the settings with ``Mark.STARTED`` are left out.
    """
    configs = [dotted(runs[0].config) for runs in groups]
    for config, runs in zip(configs, groups, strict=True):
        if len(runs) > 1:
            config["seed"] = ", ".join(str(run.setting("seed")) for run in runs)
    hidden = STARTED | {"name"}
    names = dict.fromkeys(name for config in configs for name in config if name not in hidden)
    values = {name: [config.get(name) for config in configs] for name in names}
    return {n: v for n, v in values.items() if any(other != v[0] for other in v)}


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a unique name for each group: the run's name or method.

    Groups with equal names have the settings in which they differ, or the directory, beside it.
    """
    first = [runs[0] for runs in groups]
    names = [run.name for run in first]
    paths = [clean(run.path, 160) for run in first]
    alike: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        alike.setdefault(name, []).append(i)
    for name, places in alike.items():
        if len(places) > 1:
            for i, longer in zip(
                places, _told_apart(name, [groups[i] for i in places]), strict=True
            ):
                names[i] = longer
    return names if len(set(names)) == len(names) else paths


def _told_apart(name: str, groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a unique name for each of ``groups``, whose runs all have this name."""
    first = [runs[0] for runs in groups]
    shared = set.intersection(*(set(dotted(run.config)) for run in first)) - {"method"}
    if any(len(runs) > 1 for runs in groups):
        shared -= {"seed"}
    differing = {n: values for n, values in differences(groups).items() if n in shared}
    named = [
        ", ".join([name, *(f"{n}={clean(v[i], 24)}" for n, v in differing.items())])
        for i in range(len(groups))
    ]
    placed = [f"{name} ({clean(run.path.name, 40)})" for run in first]
    paths = [clean(run.path, 160) for run in first]
    candidates = (named if len(differing) <= LABEL_SETTINGS else placed, placed)
    return next((names for names in candidates if len(set(names)) == len(groups)), paths)
