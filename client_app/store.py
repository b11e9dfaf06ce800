"""What client k keeps between rounds, durable.

``<root>/<experiment>/<k>/<round>/<kind>.safetensors``. Flower's own ``Context.state`` lives in the
SuperNode's memory, is lost with it and travels with every message; private models belong on disk.

A message for round t reads the newest state of a round < t, so repeating a round after a crash
gives the same bits. Two rounds are kept: the newest, and the one a repeated newest round starts
from. Where the server counts on what a certain round left, the message names that round, and it is
kept beside them. A write that fails, as on a full disk, leaves the last good state as it was.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, final

from common.files import write_atomically
from common.records import Records

T = TypeVar("T", bound=Records)

KEPT_ROUNDS = 2

Seen = Mapping[Path, int]
"""The files of a client's memory, each with the time of its last change in ns."""


@final
class Store:
    """State of one client in one experiment, as one process uses it.

    Raises ``ValueError`` if the folder cannot be written.
    """

    def __init__(self, root: Path, experiment: str, k: int, seen: Seen | None = None) -> None:
        """``seen``: what ``look`` found when this process began its work; None: what there is."""
        self._root = root
        self.folder = folder_of(root, experiment, k)
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        self._seen = dict(look(root, experiment, k) if seen is None else seen)

    def rounds(self) -> list[int]:
        """Rounds with state, ascending."""
        return sorted({int(path.parent.name) for path in _files(self.folder)})

    def recall(self, t: int, kind: type[T]) -> T | None:
        """The newest ``kind`` of a round < t, or None if there is none yet.

        Raises ``ValueError`` naming the file if it is damaged.
        """
        for past in reversed(self.rounds()):
            path = self._path(past, kind)
            if past < t and path.exists():
                return kind.load(path)
        return None

    def recall_of(self, t: int, kind: type[T]) -> T:
        """The ``kind`` of round t and no other.

        Raises ``ValueError`` naming the file if it is not there or damaged.
        """
        path = self._path(t, kind)
        if not path.exists():
            raise ValueError(f"{path} is missing: what this client kept of round {t}")
        return kind.load(path)

    def remember(self, t: int, state: Records, also: int = 0) -> None:
        """Keep ``state`` as of round t, atomically; drop what no repeated round can ask for.

        ``also``: a round that is kept beside the newest two. Rounds after t belong to an earlier
        run under the same name: they go first.

        Raises ``ValueError`` if it cannot be written, or if another process has meanwhile written
        state of round t or later: that one took over, and this one's work comes too late.
        """
        path = self._path(t, type(state))
        self._check_alone(t)
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, state.to_bytes(), private=True)
        except OSError as error:
            with contextlib.suppress(OSError):  # it holds the state of another kind
                path.parent.rmdir()
            raise self._unwritable(error) from error
        self._seen[path] = path.stat().st_mtime_ns
        kept = {*[past for past in self.rounds() if past <= t][-KEPT_ROUNDS:], also}
        for folder in self.folder.iterdir():
            if folder.name.isdigit() and int(folder.name) not in kept:
                shutil.rmtree(folder)

    def _check_alone(self, t: int) -> None:
        for path, changed in _files(self.folder).items():
            if int(path.parent.name) >= t and self._seen.get(path) != changed:
                raise ValueError(
                    f"{path} was written by another process while this one worked on round {t}: "
                    "its work comes too late"
                )

    def _unwritable(self, error: OSError) -> ValueError:
        return ValueError(f"state-dir {self._root} cannot be written: {error.strerror}")

    def _path(self, t: int, kind: type[Records]) -> Path:
        return self.folder / str(t) / f"{kind.kind}.safetensors"


def look(root: Path, experiment: str, k: int) -> Seen:
    """What client k's memory holds now; changes nothing."""
    return _files(folder_of(root, experiment, k))


def folder_of(root: Path, experiment: str, k: int) -> Path:
    """Where client k keeps what it knows of an experiment; it need not exist."""
    return root / experiment / str(k)


def _files(folder: Path) -> dict[Path, int]:
    found = {}
    for path in folder.glob("*/*.safetensors"):
        if path.parent.name.isdigit() and not path.name.startswith("."):
            with contextlib.suppress(OSError):  # another process dropped it just now
                found[path] = path.stat().st_mtime_ns
    return found
