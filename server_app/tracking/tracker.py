"""What a tracker is, and the ones there are, by name."""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from common.journal import Entry
from common.settings import plugins
from common.settings.extras import missing
from common.settings.section import Value

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
    "tensorboard": ("server_app.tracking.tensorboard:TensorBoard", "tensorboard"),
    "wandb": ("server_app.tracking.wandb:WandB", "wandb"),
    "mlflow": ("server_app.tracking.mlflow:MLflow", "mlflow"),
}
"""Ours by name: the class, and the package that it needs."""


def named(track: str) -> list[str]:
    """The names in a comma-separated list, each once."""
    return list(dict.fromkeys(name.strip() for name in track.split(",") if name.strip()))


def check(track: str) -> None:
    """Raise ``ValueError``, one line, for a tracker that does not exist or is not installed."""
    for name in sorted(named(track), key=TRACKERS.__contains__):  # unknown names first
        if name not in TRACKERS:
            find(name)
        elif importlib.util.find_spec(TRACKERS[name][1]) is None:
            raise _missing(name, TRACKERS[name][1])


def find(name: str) -> type[Tracker]:
    """The tracker of this name, imported: ours, or a plug-in's.

    Raises ``ValueError``, one line: it does not exist, cannot be imported here, or is no tracker.
    """
    found = _ours(name) if name in TRACKERS else plugins.find("trackers", name)
    if found is None:
        there = plugins.choices("trackers", name, TRACKERS)
        raise ValueError(f"track = {name!r} is unknown: choose from {there}")
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        where = TRACKERS.get(name, (name,))[0]
        raise ValueError(f"track = {name!r}: {where} is no Tracker")
    return plugins.checked(found)


def _ours(name: str) -> object:
    where, package = TRACKERS[name]
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise _missing(name, error.name or package) from error


def _missing(name: str, package: str) -> ValueError:
    gone = ModuleNotFoundError(f"no module named {package!r}", name=package)
    return ValueError(f"track = {name!r}: {missing(gone)}")
