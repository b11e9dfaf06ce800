"""From the journal to the trackers, each in a thread of its own, so that none is waited for.

What a tracker knows the run by, the last round that it was told, and why it failed if it did, are
in ``track/NAME.json`` of the run's folder. A resumed run tells it what it has not heard, and a
round that is repeated is not told again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, final

from pydantic import BaseModel, ConfigDict

from common.errors import report
from common.files import write_atomically
from common.journal import Entry
from common.section import Value
from server_app.track.tracker import PLACE, Tracker, find, named

log = logging.getLogger("flwr.fedmosaic")

PATIENCE = 30.0  #: seconds that all trackers together may take after the run's last round


@final
class Told(BaseModel):
    """What ``track/NAME.json`` holds."""

    model_config = ConfigDict(extra="ignore")

    known: str = ""  #: what the tracker knows the run by; empty: nothing yet
    round: int = -1  #: the last one that it was told
    failed: str = ""  #: why it was given up, in one line


def told(folder: Path, name: str) -> Told:
    """What a tracker has heard of the run in ``folder``."""
    try:
        return Told.model_validate_json(_path(folder, name).read_bytes())
    except (OSError, ValueError):
        return Told()


def failures(folder: Path, track: str) -> list[str]:
    """A line for each of these trackers that was given up."""
    found = ((name, told(folder, name).failed) for name in named(track))
    return [
        f"track: {name} failed, the run went on without it: {why}" for name, why in found if why
    ]


def add_file(folder: Path, track: str, path: Path) -> None:
    """Add a file to a run that has ended, with each of these trackers that shows it.

    Raises ``ValueError`` for a tracker that does not exist or cannot be imported.
    """
    heard = {name: told(folder, name) for name in named(track)}
    showing = [name for name, each in heard.items() if each.known and not each.failed]
    with Sink(folder, ",".join(showing), {}) as sink:
        sink.add_file(path)


def _path(folder: Path, name: str) -> Path:
    return folder / PLACE / f"{name.replace(':', '.')}.json"


@final
class Sink:
    """The trackers of the run in ``folder``, a context that ends them.

    Raises ``ValueError`` for a tracker that does not exist or cannot be imported.
    """

    def __init__(self, folder: Path, track: str, settings: Mapping[str, Value]) -> None:
        """``track``: names, comma-separated; ``settings``: of the run, by dotted key."""
        kinds = {name: find(name) for name in named(track)}
        self._lines = [_Line(name, kind, folder, settings) for name, kind in kinds.items()]

    def __enter__(self) -> Self:
        for line in self._lines:
            line.start()
        return self

    def tell(self, entries: Iterable[Entry]) -> None:
        """Show these rounds, but for those that were shown before."""
        for entry in entries:
            for line in self._lines:
                line.tell(entry)

    def add_file(self, path: Path) -> None:
        for line in self._lines:
            line.do(lambda tracker: tracker.add_file(path))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the trackers; those that do not come to an end are left behind."""
        for line in self._lines:
            line.do(lambda tracker: tracker.finish(completed=kind is None))
            line.end()
        if kind is not None and not issubclass(kind, Exception):
            return  # nobody waits after a Ctrl-C
        deadline = time.monotonic() + PATIENCE
        for line in self._lines:
            line.join(max(0.0, deadline - time.monotonic()))


Work = Callable[[Tracker], object]


@final
class _Line:
    """One tracker, its thread and what waits for it."""

    def __init__(
        self, name: str, kind: type[Tracker], folder: Path, settings: Mapping[str, Value]
    ) -> None:
        self.name, self._kind, self._folder = name, kind, folder
        self._settings = dict(settings)
        self._told = told(folder, name).model_copy(update={"failed": ""})
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # of what is told, by the thread and by who waits for it
        self._thread = threading.Thread(target=self._work, name=f"track-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, work: Work) -> None:
        """Have the tracker do this after what waits already."""
        self._waiting.put(work)

    def tell(self, entry: Entry) -> None:
        self.do(partial(self._tell, entry))

    def end(self) -> None:
        self._waiting.put(None)

    def join(self, patience: float) -> None:
        self._thread.join(patience)
        if self._thread.is_alive():
            self._fail("it does not come to an end")

    def _work(self) -> None:
        try:
            self._keep()  # its folder is there now
            tracker = self._kind()
            self._keep(known=tracker.start(self._folder, self._settings, self._told.known))
            while work := self._waiting.get():
                work(tracker)
        except BaseException as error:  # even of a tracker that wants to end the process
            self._fail(report(error, self._folder))

    def _fail(self, why: str) -> None:
        """Warn, once."""
        with self._lock:
            if not self._told.failed:
                log.warning("track: %s fails, the run goes on without it: %s", self.name, why)
                with suppress(OSError):
                    self._keep(failed=why)

    def _tell(self, entry: Entry, tracker: Tracker) -> None:
        if entry.round > self._told.round:
            tracker.entry(entry)
            self._keep(round=entry.round)

    def _keep(self, **changes: str | int) -> None:
        path = _path(self._folder, self.name)
        with self._lock:
            self._told = self._told.model_copy(update=changes)
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, self._told.model_dump_json().encode() + b"\n")
