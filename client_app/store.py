"""State of client k between rounds, on disk.

Files: ``<root>/<experiment>/<k>/<round>/<kind>.safetensors``. Flower's ``Context.state`` is not
used: it is lost with the SuperNode's process and travels with every message.

A message for round t reads the newest state of a round < t, so repeating a round after a crash
gives the same bits. After round t the server can return to the state after rounds t - 1 to
t - ``keep``. The store therefore keeps the rounds after t - ``keep``, and the newest round before
them. A request may name an older round whose state the server relies on. The store keeps that round
as long as the state of the request's own round. A failed write, e.g. on a full disk, leaves the
last good state unchanged.
"""

import contextlib
import shutil
from pathlib import Path
from typing import TypeVar, final

from common.exchange.records import Records
from common.files import Damaged, write_atomically

T = TypeVar("T", bound=Records)

NAMED = "also-"
"""Prefix of an empty file next to a round's state; the round that its request named follows."""


@final
class Store:
    """State of one client in one experiment, opened at the start of the work on a message."""

    def __init__(self, root: Path, experiment: str, k: int, keep: int = 1) -> None:
        self._root, self._keep = root, keep
        self.folder = root / experiment / str(k)
        self._seen = self._files()

    def make(self) -> None:
        """Create the folder. Raises ``ValueError`` if it cannot be written."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def rounds(self) -> list[int]:
        """Return the rounds with state, ascending."""
        return sorted({int(path.parent.name) for path in self._files()})

    def newest(self, t: int) -> int:
        """Return the newest round ≤ t with state; 0: there is none."""
        return max((past for past in self.rounds() if past <= t), default=0)

    def load_state(self, t: int, kind: type[T]) -> T | None:
        """Return the newest state of type ``kind`` of a round < t; None if there is none.

        Raises ``ValueError`` naming the file if it is damaged.
        """
        self.make()
        for past in reversed(self.rounds()):
            path = self._path(past, kind)
            if past < t and path.exists():
                return kind.load(path)
        return None

    def load_state_of(self, t: int, kind: type[T]) -> T:
        """Return the state of type ``kind`` of round t.

        Raises ``ValueError`` naming the file if it is missing or damaged.
        """
        path = self._path(t, kind)
        if not path.exists():
            raise Damaged(f"{path} is missing: it is this client's state of round {t}")
        return kind.load(path)

    def save_state(self, t: int, state: Records, also: int = 0) -> None:
        """Write ``state`` of round t atomically; delete rounds that no message can need again.

        ``also``: an older round, kept as long as round t may be repeated. Rounds after t are
        deleted: they were undone, or belong to an earlier run of the same name.

        Raises ``ValueError`` if the state cannot be written, or if another process wrote state of
        round t or later in the meantime.
        """
        path = self._path(t, type(state))
        self._check_alone(t)
        self.make()
        try:
            path.parent.mkdir(exist_ok=True)
            if also:
                (path.parent / f"{NAMED}{also}").touch(0o600)
            write_atomically(path, state.pieces(), private=True)
        except OSError as error:
            with contextlib.suppress(OSError):  # the folder may contain state of another kind
                (path.parent / f"{NAMED}{also}").unlink(missing_ok=True)
                path.parent.rmdir()
            raise self._unwritable(error) from error
        self._seen[path] = path.stat().st_mtime_ns
        needed = self._needed(t)
        for folder in self.folder.iterdir():
            if folder.name.isdigit() and int(folder.name) not in needed:
                shutil.rmtree(folder)

    def forget(self) -> None:
        """Delete the state of all rounds. Raises ``ValueError`` if it cannot be deleted."""
        try:
            for folder in {path.parent for path in self._files()}:
                shutil.rmtree(folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def _needed(self, t: int) -> set[int]:
        """Return the rounds whose state round t, a later or a repeated round may read."""
        past = [r for r in self.rounds() if r <= t]
        first = [r for r in past if r <= t - self._keep][-1:]
        recent = [r for r in past if r > t - self._keep]
        needed = {*first, *recent}
        folders = (self.folder / str(r) for r in recent)
        named = (path.name for folder in folders for path in folder.glob(f"{NAMED}*"))
        return needed | {int(name.removeprefix(NAMED)) for name in named}

    def _check_alone(self, t: int) -> None:
        for path, changed in self._files().items():
            if int(path.parent.name) >= t and self._seen.get(path) != changed:
                raise ValueError(
                    f"{path} was written by another process while this one worked on round {t}; "
                    "its result is discarded"
                )

    def _unwritable(self, error: OSError) -> Damaged:
        return Damaged(f"state-dir {self._root} cannot be written: {error.strerror}")

    def _path(self, t: int, kind: type[Records]) -> Path:
        return self.folder / str(t) / f"{kind.kind}.safetensors"

    def _files(self) -> dict[Path, int]:
        """Return the state files, each with the time of its last change in ns."""
        files: dict[Path, int] = {}
        for path in self.folder.glob("*/*.safetensors") if self.folder.is_dir() else ():
            if path.parent.name.isdigit() and not path.name.startswith("."):
                with contextlib.suppress(OSError):  # another process may delete it meanwhile
                    files[path] = path.stat().st_mtime_ns
        return files
