"""Every client's latest upload, cached for overall aggregation (FedKF, section IV-A).

Bounded: the newest uploads are in memory and part of the checkpoint; the others are files, one for
each client, of which the checkpoint holds the rounds. A file that the last checkpoint names is not
removed before the next one is written, so a run that dies in between goes on from whole files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar, final

from common.files import write_atomically
from common.protocol import Up
from common.records import Records

P = TypeVar("P", bound=Up)


@final
class Upload(Records):
    """Client k's upload of round t, in a file."""

    k: int
    t: int
    up: dict[str, object]


@final
class Uploads(Generic[P]):
    """One upload of ``kind`` for each client that ever sent one; at most ``limit`` in memory."""

    def __init__(self, kind: type[P], folder: Path, limit: int) -> None:
        self.kind, self.folder, self.limit = kind, folder / "uploads", limit
        self.held: dict[int, P] = {}  #: in memory, by client
        self.rounds: dict[int, int] = {}  #: the round of every client's upload

    def put(self, t: int, uploads: Sequence[tuple[int, P]]) -> None:
        """Take round t's uploads; the oldest of those in memory make room (ties: larger k)."""
        self._sweep()
        for k, up in uploads:
            self.held[k], self.rounds[k] = up, t
        oldest = sorted(self.held, key=lambda k: (self.rounds[k], -k))
        for k in oldest[: max(len(oldest) - self.limit, 0)]:
            self._path(k).parent.mkdir(parents=True, exist_ok=True)
            upload = Upload(k=k, t=self.rounds[k], up=dict(self.held.pop(k)))
            write_atomically(self._path(k), upload.to_bytes(), private=True)

    def __contains__(self, k: int) -> bool:
        return k in self.rounds

    def get(self, k: int) -> P:
        """Client k's upload. Raises ``ValueError`` naming a file that is missing or damaged."""
        if k in self.held:
            return self.held[k]
        return self.kind.model_validate(Upload.load(self._path(k)).up)

    def restore(self, held: dict[int, dict[str, object]], rounds: dict[int, int]) -> None:
        """Take up what a checkpoint holds. Raises ``ValueError`` if a file is not there."""
        self.held = {k: self.kind.model_validate(up) for k, up in held.items()}
        self.rounds = dict(rounds)
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
