"""What a tracker is, and the ones there are, by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from common.extras import missing
from common.journal import Entry
from common.section import Value

PLACE = "track"  #: the folder of all trackers in a run's folder


class Tracker(ABC):
    """Shows one run. One thread makes it, without arguments, and uses it, ``start`` to ``finish``.

    What a method raises is a warning; the run goes on and this object is called no more.
    """

    @abstractmethod
    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        """Begin a tracked run, or go on with one; what it is known by, as a text to keep.

        ``folder``: the run's, whose name is the run's; what the tracker writes goes to
        ``folder / PLACE``, which is there. ``settings``: the run's by dotted key, ``auto``
        resolved; to be shown when the run begins. ``known``: empty, or what ``start`` returned when
        this run began.
        """

    @abstractmethod
    def entry(self, entry: Entry) -> None:
        """Show one round, the census being round 0. Every round comes once and in order.

        What this has returned from should outlast the end of the process.
        """

    @abstractmethod
    def add_file(self, path: Path) -> None:
        """Add a file to the tracked run, such as its report."""

    @abstractmethod
    def finish(self, completed: bool) -> None:
        """Nothing follows; ``completed``: all rounds are done."""


TRACKERS = {
    "tensorboard": ("server_app.track.tensorboard:TensorBoard", "tensorboard"),
    "wandb": ("server_app.track.wandb:WandB", "wandb"),
    "mlflow": ("server_app.track.mlflow:MLflow", "mlflow"),
}
"""Ours by name: the class, and the package that it needs."""


def named(track: str) -> list[str]:
    """The names in a comma-separated list, each once."""
    return list(dict.fromkeys(name.strip() for name in track.split(",") if name.strip()))


def check(track: str) -> None:
    """Raise ``ValueError``, one line, for a tracker that does not exist or is not installed."""
    for name in named(track):
        _, package = _listed(name)
        if importlib.util.find_spec(package) is None:
            raise _missing(name, package)


def find(name: str) -> type[Tracker]:
    """The tracker of this name, imported.

    Raises ``ValueError``, one line: it does not exist, or cannot be imported here.
    """
    where, package = _listed(name)
    module, _, attribute = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise _missing(name, error.name or package) from error
    if not isinstance(found, type) or not issubclass(found, Tracker):
        raise ValueError(f"track = {name!r}: {where} is no {Tracker.__name__}")
    return found


def _listed(name: str) -> tuple[str, str]:
    """The line of ``TRACKERS``; raises ``ValueError`` if there is none."""
    if name in TRACKERS:
        return TRACKERS[name]
    near = difflib.get_close_matches(name, TRACKERS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(TRACKERS)}"
    raise ValueError(f"track = {name!r} is unknown; {hint}")


def _missing(name: str, package: str) -> ValueError:
    gone = ModuleNotFoundError(f"no module named {package!r}", name=package)
    return ValueError(f"track = {name!r}: {missing(gone)}")
