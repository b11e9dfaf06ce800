"""Trackers follow a run's journal, in a thread that the run does not wait for.

``track/NAME.json`` in the run's folder holds what a tracker knows the run by, the last round that
it was told, and why it failed. A resumed run tells it what it has not heard, each round once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self, final

from pydantic import BaseModel, ConfigDict

from common.errors import report
from common.files import write_atomically
from common.journal import Entry, follow
from common.settings.section import Value
from server_app.tracking.tracker import PLACE, Tracker, check, find, named

log = logging.getLogger("flwr.fedmosaic")

PATIENCE = 30.0  #: seconds that all trackers together may take after the run's last round


@final
class TrackerProgress(BaseModel):
    """What ``track/NAME.json`` holds."""

    model_config = ConfigDict(extra="ignore")

    known: str = ""  #: what the tracker knows the run by; empty: nothing yet
    round: int = -1  #: the last one that it was told
    failed: str = ""  #: why it was given up, in one line


def progress_of(folder: Path, name: str) -> TrackerProgress:
    """What a tracker has heard of the run in ``folder``."""
    try:
        return TrackerProgress.model_validate_json(_path(folder, name).read_bytes())
    except (OSError, ValueError):
        return TrackerProgress()


def failures(folder: Path, track: str) -> list[str]:
    """A line for each of these trackers that was given up."""
    found = ((name, progress_of(folder, name).failed) for name in named(track))
    return [
        f"track: {name} failed, the run went on without it: {why}" for name, why in found if why
    ]


def add_file(folder: Path, track: str, path: Path) -> None:
    """Add a file to a run that has ended, with each of these trackers that shows it.

    Raises ``ValueError`` for a tracker that does not exist or cannot be imported.
    """
    heard = {name: progress_of(folder, name) for name in named(track)}
    showing = [name for name, each in heard.items() if each.known and not each.failed]
    with Sink(folder, ",".join(showing), {}, file=path):
        pass


def _path(folder: Path, name: str) -> Path:
    return folder / PLACE / f"{name.replace(':', '.')}.json"


@final
class Sink:
    """The trackers of the run in ``folder``, a context in which they follow its journal.

    Raises ``ValueError`` for a tracker that does not exist or cannot be imported.
    """

    def __init__(
        self, folder: Path, track: str, settings: Mapping[str, Value], file: Path | None = None
    ) -> None:
        """``track``: names, comma-separated; ``settings``: of the run, by dotted key; ``file``: is
        added to the tracked runs, and no journal followed.
        """
        self._folder, self._settings, self._file = folder, dict(settings), file
        check(track)
        self._shown = [_Shown(name, find(name), folder) for name in named(track)]
        self._over, self._completed = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)

    def __enter__(self) -> Self:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the trackers; those that do not come to an end are left behind."""
        self._completed = kind is None
        self._over.set()
        if not self._shown or (kind is not None and not issubclass(kind, Exception)):
            return  # nobody waits after a Ctrl-C
        self._thread.join(PATIENCE)
        for one in self._shown:
            if not one.finished:
                one.fail("it does not come to an end")

    def _work(self) -> None:
        self._each(lambda one: one.start(self._folder, self._settings))
        if (file := self._file) is not None:
            self._each(lambda one: one.tracker.add_file(file))
        else:
            journal, over = self._folder / "journal.jsonl", self._over.is_set
            follow(journal, over, lambda e: self._each(lambda one: one.tell(e)), log.warning)
        self._each(lambda one: one.finish(self._completed))

    def _each(self, work: Callable[[_Shown], object]) -> None:
        """Have every tracker do this that has not failed yet."""
        for one in self._shown:
            try:
                if not one.told.failed:
                    work(one)
            except BaseException as error:  # even of a tracker that wants to end the process
                one.fail(report(error, self._folder))


@final
class _Shown:
    """A run as one tracker shows it."""

    def __init__(self, name: str, kind: type[Tracker], folder: Path) -> None:
        self.name, self._kind, self._path = name, kind, _path(folder, name)
        self.told = progress_of(folder, name).model_copy(update={"failed": ""})
        self.finished = False
        self._lock = threading.RLock()  # of ``told``: both threads may find that it fails

    def start(self, folder: Path, settings: Mapping[str, Value]) -> None:
        self._keep()  # its folder is there now
        self.tracker = self._kind()
        self._keep(known=self.tracker.start(folder, settings, self.told.known))

    def tell(self, entry: Entry) -> None:
        """Show a round, unless it was shown before."""
        if entry.round > self.told.round:
            self.tracker.entry(entry)
            self._keep(round=entry.round)

    def finish(self, completed: bool) -> None:
        self.tracker.finish(completed)
        self.finished = True

    def fail(self, why: str) -> None:
        """Warn, once."""
        with self._lock, suppress(OSError):
            if not self.told.failed:
                log.warning("track: %s fails, the run goes on without it: %s", self.name, why)
                self._keep(failed=why)

    def _keep(self, **changes: str | int) -> None:
        with self._lock:
            self.told = self.told.model_copy(update=changes)
            self._path.parent.mkdir(exist_ok=True)
            write_atomically(self._path, self.told.model_dump_json().encode() + b"\n")
