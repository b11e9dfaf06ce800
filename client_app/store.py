"""What client k keeps between rounds, durable.

``<root>/<experiment>/<k>/<round>/<kind>.safetensors``. Flower's own ``Context.state`` lives in the
SuperNode's memory, is lost with it and travels with every message; private models belong on disk.

A message for round t reads the newest state of a round < t, so repeating a round after a crash
gives the same bits. After round t the server can go back to the states after rounds t - 1 to
t - ``keep``: those after t - ``keep`` are kept, and the newest before them. Where the server counts
on what a certain round left, the message names that round, and it is kept beside those whose
messages named it. A write that fails, as on a full disk, leaves the last good state as it was.
"""

import contextlib
import shutil
from pathlib import Path
from typing import TypeVar, final

from common.exchange.records import Records
from common.files import Damaged, write_atomically

T = TypeVar("T", bound=Records)

NAMED = "also-"
"""Begins the name of an empty file beside a round's state: its message named the round behind."""


@final
class Store:
    """State of one client in one experiment, opened when this process begins its work."""

    def __init__(self, root: Path, experiment: str, k: int, keep: int = 1) -> None:
        self._root, self._keep = root, keep
        self.folder = root / experiment / str(k)
        self._seen = self._files()

    def make(self) -> None:
        """Make the folder. Raises ``ValueError`` if it cannot be written."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def rounds(self) -> list[int]:
        """Rounds with state, ascending."""
        return sorted({int(path.parent.name) for path in self._files()})

    def newest(self, t: int) -> int:
        """The newest round ≤ t with state; 0: none."""
        return max((past for past in self.rounds() if past <= t), default=0)

    def load_state(self, t: int, kind: type[T]) -> T | None:
        """The newest ``kind`` of a round < t, or None if there is none yet.

        Raises ``ValueError`` naming the file if it is damaged.
        """
        self.make()
        for past in reversed(self.rounds()):
            path = self._path(past, kind)
            if past < t and path.exists():
                return kind.load(path)
        return None

    def load_state_of(self, t: int, kind: type[T]) -> T:
        """The ``kind`` of round t and no other.

        Raises ``ValueError`` naming the file if it is not there or damaged.
        """
        path = self._path(t, kind)
        if not path.exists():
            raise Damaged(f"{path} is missing: what this client kept of round {t}")
        return kind.load(path)

    def save_state(self, t: int, state: Records, also: int = 0) -> None:
        """Keep ``state`` as of round t, atomically; drop what no repeated round can ask for.

        ``also``: a round that is kept beside them as long as this one may be repeated. Rounds after
        t belong to an earlier run under the same name, or are undone: they go first.

        Raises ``ValueError`` if it cannot be written, or if another process took over: it has
        meanwhile written state of round t or later.
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
            with contextlib.suppress(OSError):  # it holds the state of another kind
                (path.parent / f"{NAMED}{also}").unlink(missing_ok=True)
                path.parent.rmdir()
            raise self._unwritable(error) from error
        self._seen[path] = path.stat().st_mtime_ns
        kept = self._needed(t)
        for folder in self.folder.iterdir():
            if folder.name.isdigit() and int(folder.name) not in kept:
                shutil.rmtree(folder)

    def _needed(self, t: int) -> set[int]:
        """The rounds that round t, one after it or a repeated one may read."""
        past = [r for r in self.rounds() if r <= t]
        first = [r for r in past if r <= t - self._keep][-1:]
        needed = {*first, *(r for r in past if r > t - self._keep)}
        again = (self.folder / str(r) for r in past if r > t - self._keep)
        named = (path.name for round_ in again for path in round_.glob(f"{NAMED}*"))
        return needed | {int(name.removeprefix(NAMED)) for name in named}

    def _check_alone(self, t: int) -> None:
        for path, changed in self._files().items():
            if int(path.parent.name) >= t and self._seen.get(path) != changed:
                raise ValueError(
                    f"{path} was written by another process while this one worked on round {t}: "
                    "its work comes too late"
                )

    def _unwritable(self, error: OSError) -> Damaged:
        return Damaged(f"state-dir {self._root} cannot be written: {error.strerror}")

    def _path(self, t: int, kind: type[Records]) -> Path:
        return self.folder / str(t) / f"{kind.kind}.safetensors"

    def _files(self) -> dict[Path, int]:
        """The files of state, each with the time of its last change in ns."""
        found: dict[Path, int] = {}
        for path in self.folder.glob("*/*.safetensors") if self.folder.is_dir() else ():
            if path.parent.name.isdigit() and not path.name.startswith("."):
                with contextlib.suppress(OSError):  # another process dropped it just now
                    found[path] = path.stat().st_mtime_ns
        return found
