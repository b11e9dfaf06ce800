"""The base class of trackers, and the available trackers by name."""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from common.extras import missing
from common.journal import Entry
from common.settings import plugins
from common.settings.section import Value

PLACE = "track"  #: the folder of all trackers in a run's folder


class Tracker(ABC):
    """Base class: shows one run. One thread makes it without arguments and calls all its methods.

    An exception in a method becomes a warning; the run goes on without further calls.
    """

    @abstractmethod
    def start(self, folder: Path, settings: Mapping[str, Value], known: str) -> str:
        """Begin or continue a tracked run, and return the tracker's id of the run.

        ``folder``: the run's folder; its name is the run's name. Files of the tracker go to
        ``folder / PLACE``, which exists. ``settings``: the run's settings by dotted key, ``auto``
        resolved; a new run shows them. ``known``: empty for a new run, otherwise the id.
        """

    @abstractmethod
    def entry(self, entry: Entry) -> None:
        """Show one round; the census is round 0. Every round comes once and in order.

        Write the data before returning, so that it survives the end of the process.
        """

    @abstractmethod
    def add_file(self, path: Path) -> None:
        """Add a file to the tracked run, such as its report."""

    @abstractmethod
    def finish(self, completed: bool) -> None:
        """End the tracked run; ``completed``: whether all rounds are done."""


TRACKERS = {
    "tensorboard": ("server_app.tracking.tensorboard:TensorBoard", "tensorboard"),
    "wandb": ("server_app.tracking.wandb:WandB", "wandb"),
    "mlflow": ("server_app.tracking.mlflow:MLflow", "mlflow"),
}
"""The project's trackers by name: the class, and the package that it needs."""


def named(track: str) -> list[str]:
    """Return the distinct names in a comma-separated list."""
    return list(dict.fromkeys(name.strip() for name in track.split(",") if name.strip()))


def check(track: str) -> None:
    """Raise ``ValueError``, one line, for a tracker that does not exist or is not installed."""
    for name in sorted(named(track), key=TRACKERS.__contains__):  # unknown names first
        if name not in TRACKERS:
            find(name)
        elif importlib.util.find_spec(TRACKERS[name][1]) is None:
            raise _missing(name, TRACKERS[name][1])


def find(name: str) -> type[Tracker]:
    """Import and return the tracker class of this name: the project's, or a plug-in's.

    Raises ``ValueError``, one line: it does not exist, cannot be imported, or is no tracker.
    """
    if name in TRACKERS:
        kind = _import(name)
    else:
        kind = plugins.required("trackers", name, TRACKERS, f"track = {name!r} is unknown")
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        where = TRACKERS.get(name, (name,))[0]
        raise ValueError(f"track = {name!r}: {where} is no Tracker")
    return plugins.checked(kind)


def _import(name: str) -> object:
    where, package = TRACKERS[name]
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise _missing(name, error.name or package) from error


def _missing(name: str, package: str) -> ValueError:
    error = ModuleNotFoundError(f"no module named {package!r}", name=package)
    return ValueError(f"track = {name!r}: {missing(error)}")
