"""Overall clients aggregated (OCA): ŵ over every client's latest upload (FedKF, section IV-A, T1).

The server still sends the model of the active clients (ACA). It also combines the cached uploads of
all clients, in order of k, by the method's own combination. ŵ is then the run's model, and both are
scored. If all clients are active in every round, both models are equal.

Membership: ŵ covers the members. The upload of a client that left stays in the cache, and counts
again when the client returns.

The cache is bounded: the newest uploads are in memory and in the checkpoint. Each other upload is a
file, and the checkpoint has its round. A file stays while one of the last ``keep`` checkpoints
names it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar, final

from common.exchange.records import Records, StateDict
from common.files import write_atomically


@final
class State(Records, kind="oca.State"):
    inner: dict[str, object]
    overall: dict[str, StateDict]  #: ŵ by architecture
    uploads: dict[int, dict[str, object]]  #: the uploads in memory, by client
    rounds: dict[int, int]  #: the round of each client's upload


P = TypeVar("P", bound=Records)


@final
class Upload(Records, kind="oca.Upload"):
    """Client k's upload of round t, in a file."""

    k: int
    t: int
    up: dict[str, object]


@final
class Uploads(Generic[P]):
    """Cache of the latest upload of each client, of type ``kind``; at most ``limit`` in memory."""

    def __init__(self, kind: type[P], folder: Path, limit: int, keep: int = 1) -> None:
        self.kind, self.folder = kind, folder / "uploads"
        self.limit, self.keep = limit, keep
        self.in_memory: dict[int, P] = {}  #: uploads by client
        self.rounds: dict[int, int] = {}  #: the round of every client's upload

    def put(self, t: int, uploads: Sequence[tuple[int, P]]) -> None:
        """Add round t's uploads; write the oldest in memory to files (ties: larger k first)."""
        self._remove_files(t)
        for k, reply in uploads:
            self.in_memory[k], self.rounds[k] = reply, t
        oldest = sorted(self.in_memory, key=lambda k: (self.rounds[k], -k))
        for k in oldest[: max(len(oldest) - self.limit, 0)]:
            self._path(k).parent.mkdir(parents=True, exist_ok=True)
            upload = Upload(k=k, t=self.rounds[k], up=dict(self.in_memory.pop(k)))
            write_atomically(self._path(k), upload.pieces(), private=True)

    def __contains__(self, k: int) -> bool:
        return k in self.rounds

    def get(self, k: int) -> P:
        """Return client k's upload. Raises ``ValueError`` naming a missing or damaged file."""
        if k in self.in_memory:
            return self.in_memory[k]
        return self.kind.model_validate(Upload.load(self._path(k)).up)

    def state(self, inner: dict[str, object], overall: dict[str, StateDict]) -> State:
        """Return the state of a method (``inner``) with ŵ and the cache."""
        uploads = {k: dict(reply) for k, reply in self.in_memory.items()}
        return State(inner=inner, overall=overall, uploads=uploads, rounds=self.rounds)

    def restore(
        self, state: Mapping[str, object]
    ) -> tuple[dict[str, object], dict[str, StateDict]]:
        """Restore the cache from a checkpoint; return the method's own state, and ŵ.

        Raises ``ValueError`` if a file is missing.
        """
        kept = State.model_validate(state)
        self.in_memory = {k: self.kind.model_validate(reply) for k, reply in kept.uploads.items()}
        self.rounds = dict(kept.rounds)
        for k in self.rounds.keys() - self.in_memory.keys():
            if not self._path(k).exists():
                raise ValueError(f"{self._path(k)} is missing: the cached model of client {k}")
        return kept.inner, dict(kept.overall)

    def _path(self, k: int) -> Path:
        return self.folder / f"{k}-{self.rounds[k]}.safetensors"

    def _remove_files(self, t: int) -> None:
        """Remove the files that none of the last ``keep`` checkpoints, up to t - 1, names.

        Checkpoints name an upload until the round of the client's next one.
        """
        by_client: dict[int, list[tuple[int, Path]]] = {}
        for path in self.folder.glob("*-*.safetensors") if self.folder.exists() else ():
            client, _, when = path.stem.partition("-")
            by_client.setdefault(int(client), []).append((int(when), path))
        for k, files in by_client.items():
            rounds = sorted({r for r, _ in files if r < t} | {self.rounds.get(k, t)})
            for r, path in files:
                later = next((one for one in rounds if one > r), t)
                if r >= t or r > self.rounds.get(k, -1) or later <= t - self.keep:
                    path.unlink()
