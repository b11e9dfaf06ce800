"""What client k keeps between rounds, durable.

``<root>/<experiment>/<k>/<round>/<kind>.safetensors``. Flower's own ``Context.state`` lives in the
SuperNode's memory, is lost with it and travels with every message; private models belong on disk.

A message for round t reads the newest state of a round < t, so repeating a round after a crash
gives the same bits. Two rounds are kept: the newest, and the one a repeated newest round starts
from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeVar, final

from common.files import write_atomically
from common.records import Records

T = TypeVar("T", bound=Records)

KEPT_ROUNDS = 2


@final
class Store:
    """State of one client in one experiment.

    Raises ``ValueError`` if the folder cannot be written.
    """

    def __init__(self, root: Path, experiment: str, k: int) -> None:
        self.folder = root / experiment / str(k)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"state-dir {root} cannot be written: {error.strerror}") from error

    def rounds(self) -> list[int]:
        """Rounds with state, ascending."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def recall(self, t: int, kind: type[T]) -> T | None:
        """The newest ``kind`` of a round < t, or None if there is none yet.

        Raises ``ValueError`` naming the file if it is damaged.
        """
        for past in reversed(self.rounds()):
            path = self._path(past, kind)
            if past < t and path.exists():
                return kind.load(path)
        return None

    def remember(self, t: int, state: Records) -> None:
        """Keep ``state`` as of round t, atomically; drop what no repeated round can ask for.

        Rounds after t belong to an earlier run under the same name: they go first.
        """
        path = self._path(t, type(state))
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, state.to_bytes())
        rounds = self.rounds()
        reached = [past for past in rounds if past <= t]
        for gone in {*rounds} - {*reached[-KEPT_ROUNDS:]}:
            shutil.rmtree(self.folder / str(gone))

    def _path(self, t: int, kind: type[Records]) -> Path:
        return self.folder / str(t) / f"{kind.kind}.safetensors"
