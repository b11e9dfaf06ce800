"""What tells compared runs apart: a short label for each, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from deploy.report.clean import clean
from deploy.report.read import Run, flat

MOST = 3  # settings in a label beside the method; more would not be read


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Setting -> its value in each run (None: not set), for the settings that are not all equal."""
    configs = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: [config.get(name) for config in configs] for name in names}
    return {n: v for n, v in values.items() if any(other != v[0] for other in v)}


def labels(runs: Sequence[Run]) -> list[str]:
    """One label per run, all different: the method, and what differs or where it lies."""
    methods = [run.setting("method") or run.path.name for run in runs]
    if len(runs) == 1:
        return methods
    shared = set.intersection(*(set(flat(run.config)) for run in runs))
    told = {
        name: values
        for name, values in differences(runs).items()
        if name in shared
        and name not in ("method", "experiment")
        and not any(_is_place(v) for v in values)
    }
    named = [
        ", ".join([m, *(f"{n.rpartition('.')[2]}={clean(v[i], 24)}" for n, v in told.items())])
        for i, m in enumerate(methods)
    ]
    placed = [f"{m} ({clean(run.path.name, 40)})" for m, run in zip(methods, runs, strict=True)]
    for candidate in (methods, named if len(told) <= MOST else methods, placed):
        if len(set(candidate)) == len(runs):
            return candidate
    return [clean(run.path, 160) for run in runs]


def _is_place(value: object) -> bool:
    """Directories differ between runs without telling them apart."""
    return isinstance(value, str) and len(PurePath(value).parts) > 1
