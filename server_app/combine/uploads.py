"""Every client's latest upload: the cache slots of active-inactive aggregation (FedKF, IV-A).

Bounded: the newest uploads are in memory and part of the checkpoint; the others are files, one for
each client, of which the checkpoint holds the rounds. A file that the last checkpoint names is not
removed before the next one is written, so a run that dies in between goes on from whole files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from common.files import write_atomically
from common.records import Records, StateDict


@final
class Slot(Records):
    """Client k's upload of round t, in a file."""

    k: int
    t: int
    w: StateDict


@final
class Slots:
    """One slot for each client that has ever uploaded; at most ``limit`` of them in memory."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder / "slots", limit
        self.held: dict[int, StateDict] = {}  #: in memory, by client
        self.rounds: dict[int, int] = {}  #: the round of every client's upload

    def put(self, t: int, uploads: Sequence[tuple[int, StateDict]]) -> None:
        """Take round t's uploads; the oldest of those in memory make room (ties: larger k)."""
        self._sweep()
        for k, w in uploads:
            self.held[k], self.rounds[k] = w, t
        oldest = sorted(self.held, key=lambda k: (self.rounds[k], -k))
        for k in oldest[: max(len(oldest) - self.limit, 0)]:
            self._path(k).parent.mkdir(parents=True, exist_ok=True)
            slot = Slot(k=k, t=self.rounds[k], w=self.held.pop(k))
            write_atomically(self._path(k), slot.to_bytes(), private=True)

    def __contains__(self, k: int) -> bool:
        return k in self.rounds

    def states(self, clients: Sequence[int], otherwise: StateDict) -> Iterator[StateDict]:
        """The slots of ``clients`` in that order, one at a time; ``otherwise`` for an empty slot.

        Raises ``ValueError`` naming a file that is missing or damaged.
        """
        for k in clients:
            if k in self.held:
                yield self.held[k]
            elif k in self.rounds:
                yield Slot.load(self._path(k)).w
            else:
                yield otherwise

    def restore(self, held: dict[int, StateDict], rounds: dict[int, int]) -> None:
        """Take up what a checkpoint holds. Raises ``ValueError`` if a file is not there."""
        self.held, self.rounds = dict(held), dict(rounds)
        for k in self.rounds.keys() - self.held.keys():
            if not self._path(k).exists():
                raise ValueError(f"{self._path(k)} is missing: the cached model of client {k}")

    def _path(self, k: int) -> Path:
        return self.folder / f"{k}-{self.rounds[k]}.safetensors"

    def _sweep(self) -> None:
        """Remove the files that the last checkpoint, which this state is, does not name."""
        named = {self._path(k) for k in self.rounds.keys() - self.held.keys()}
        for path in self.folder.glob("*.safetensors") if self.folder.exists() else ():
            if path not in named:
                path.unlink()
