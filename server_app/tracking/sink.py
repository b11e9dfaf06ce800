"""Trackers follow a run's journal in a thread of their own, for which the run does not wait.

``track/NAME.json`` in the run's folder has the tracker's id of the run, the last round that it
received, and why it failed. A resumed run sends the rounds that are missing, each once.
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
from common.journal import Entry
from common.settings.section import Value
from server_app.release import RELEASED
from server_app.storage.journal import follow
from server_app.tracking.tracker import PLACE, Tracker, check, find, named

log = logging.getLogger("flwr.fedmosaic")

PATIENCE = 30.0  #: seconds that all trackers together may take after the run's last round


@final
class TrackerProgress(BaseModel):
    """Content of ``track/NAME.json``."""

    model_config = ConfigDict(extra="ignore")

    known: str = ""  #: the tracker's id of the run; empty before it has one
    round: int = -1  #: the last round that the tracker received
    failed: str = ""  #: why the tracker failed, in one line


def progress_of(folder: Path, name: str) -> TrackerProgress:
    """Return the progress of a tracker for the run in ``folder``."""
    try:
        return TrackerProgress.model_validate_json(_path(folder, name).read_bytes())
    except (OSError, ValueError):
        return TrackerProgress()


def failures(folder: Path, track: str) -> list[str]:
    """Return a line for each of the trackers ``track`` that failed."""
    reasons = ((name, progress_of(folder, name).failed) for name in named(track))
    return [
        f"track: {name} failed, the run went on without it: {why}" for name, why in reasons if why
    ]


def add_file(folder: Path, track: str, path: Path) -> None:
    """Add a file to an ended run in each of the trackers ``track`` that shows the run.

    Raises ``ValueError`` for a tracker that does not exist or cannot be imported.
    """
    progress = {name: progress_of(folder, name) for name in named(track)}
    showing = [name for name, state in progress.items() if state.known and not state.failed]
    with Sink(folder, ",".join(showing), {}, file=path):
        pass


def _path(folder: Path, name: str) -> Path:
    return folder / PLACE / f"{name.replace(':', '.')}.json"


@final
class Sink:
    """Context in which the trackers of the run in ``folder`` follow its journal.

    Raises ``ValueError`` for a tracker that does not exist or cannot be imported.
    """

    def __init__(
        self,
        folder: Path,
        track: str,
        settings: Mapping[str, Value],
        file: Path | None = None,
        *,
        at_end: bool = False,
    ) -> None:
        """Make the trackers named in ``track``, comma-separated.

        ``settings``: those of the run, by dotted key. With ``file`` the trackers only add this file
        to the run, and do not follow the journal. With ``at_end`` they get all rounds after the
        last one, so that their times show no durations of rounds.
        """
        self._folder, self._settings, self._file = folder, dict(settings), file
        self._at_end = at_end
        check(track)
        self._runs = [_TrackedRun(name, find(name), folder) for name in named(track)]
        self._over, self._completed = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)

    def __enter__(self) -> Self:
        if self._runs:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the trackers to finish; one that is not done after ``PATIENCE`` has failed."""
        self._completed = kind is None
        self._over.set()
        if not self._runs or (kind is not None and not issubclass(kind, Exception)):
            return  # do not wait after a Ctrl-C
        self._thread.join(PATIENCE)
        for run in self._runs:
            if not run.finished:
                run.fail("it does not come to an end")

    def _work(self) -> None:
        self._each(lambda run: run.start(self._folder, self._settings))
        if (file := self._file) is not None:
            self._each(lambda run: run.tracker.add_file(file))
            self._over.wait()  # which sets whether the block completed
        else:
            if self._at_end:
                self._over.wait()
            journal, over = self._folder / "journal.jsonl", self._over.is_set
            follow(journal, over, lambda e: self._each(lambda run: run.add(e)), log.warning)
        self._each(lambda run: run.finish(self._completed))

    def _each(self, work: Callable[[_TrackedRun], object]) -> None:
        """Call ``work`` for every tracker that has not failed."""
        for run in self._runs:
            try:
                if not run.progress.failed:
                    work(run)
            except BaseException as error:  # also SystemExit of a tracker
                run.fail(report(error, self._folder))


@final
class _TrackedRun:
    """One tracker's view of a run."""

    def __init__(self, name: str, kind: type[Tracker], folder: Path) -> None:
        self.name, self._kind, self._path = name, kind, _path(folder, name)
        self.progress = progress_of(folder, name).model_copy(update={"failed": ""})
        self.finished = False
        self._lock = threading.RLock()  # for ``progress``, which both threads may change

    def start(self, folder: Path, settings: Mapping[str, Value]) -> None:
        self._save()  # makes the trackers' folder
        self.tracker = self._kind()
        self._save(known=self.tracker.start(folder, settings, self.progress.known))

    def add(self, entry: Entry) -> None:
        """Show a round, unless it was shown before."""
        if entry.round > self.progress.round:
            self.tracker.entry(entry)
            self._save(round=entry.round)

    def finish(self, completed: bool) -> None:
        self.tracker.finish(completed)
        self.finished = True

    def fail(self, why: str) -> None:
        """Warn once, and use this tracker no more."""
        with self._lock, suppress(OSError):
            if not self.progress.failed:
                line = "track: %s fails, the run goes on without it: %s"
                log.warning(line, self.name, why, extra=RELEASED)
                self._save(failed=why)

    def _save(self, **changes: str | int) -> None:
        with self._lock:
            self.progress = self.progress.model_copy(update=changes)
            self._path.parent.mkdir(exist_ok=True)
            write_atomically(self._path, self.progress.model_dump_json().encode() + b"\n")
