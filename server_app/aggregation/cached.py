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
from typing import Generic, TypeVar, cast, final

from common.exchange.protocol import Reply
from common.exchange.records import Records, StateDict
from common.files import write_atomically
from common.models.classifier import Classifier
from server_app.global_model import Averaged, T
from server_app.method import Client, Metrics, Models, O, Replies


@final
class State(Records, kind="oca.State"):
    inner: dict[str, object]
    overall: dict[str, StateDict]  #: ŵ by architecture
    uploads: dict[int, dict[str, object]]  #: the uploads in memory, by client
    rounds: dict[int, int]  #: the round of each client's upload


@final
class Oca(Averaged[O, T]):
    """Class placed before a method's class: ŵ ← its combination of all clients' latest uploads."""

    name = "oca"

    def prepare(self) -> None:
        super().prepare()
        run, kind = self.config.run, cast("type[T]", self.reply_type)
        self.uploads = Uploads(kind, Path(run.out), self.config.oca.in_memory, run.keep)

    def step(self, t: int, replies: Replies[T]) -> Metrics:
        metrics = super().step(t, replies)
        self.uploads.put(t, [(client.k, self.cached(reply)) for client, reply in replies])
        latest = self._latest()
        self.overall, _ = self.refine(t, latest, self.aggregate(latest, self.overall))
        return metrics

    def _latest(self) -> Replies[T]:
        """Return every client's latest upload.

        A client without an upload is left out, or has the initial model if ``oca.init = "w0"``.
        """
        uploads, fill = self.uploads, self.config.oca.init == "w0"
        first = self.initial_models() if fill else {}

        def load(client: Client) -> T:
            if client.k in uploads:
                return uploads.get(client.k)
            return uploads.kind.model_construct(w=self.start(first, client))

        return Replies([c for c in self.clients if fill or c.k in uploads], load)

    # What is scored.

    def model(self) -> Classifier:
        return list(self.classifiers(self.overall).values())[-1]

    def networks(self) -> dict[str, Classifier]:
        return self.classifiers(self.overall) if super().networks() else {}

    def further(self) -> dict[str, Models]:
        """Return the ACA model, and the model that the method scores without OCA."""
        models = {"aca": self.by_architecture(self.models)}
        if super().name != "global" and (w := super().weights_to_score()) is not None:
            models[super().name] = {self.global_spec: w}
        return {**models, **super().further()}

    def weights_to_score(self) -> StateDict:
        return self.merged(self.overall)

    def state(self) -> State:
        uploads = {k: dict(reply) for k, reply in self.uploads.in_memory.items()}
        rounds, inner = self.uploads.rounds, dict(super().state())
        return State(inner=inner, overall=self.overall, uploads=uploads, rounds=rounds)

    def restore(self, state: Mapping[str, object]) -> None:
        kept = State.model_validate(state)
        super().restore(kept.inner)
        self.overall = dict(kept.overall)
        self.uploads.restore(kept.uploads, kept.rounds)


P = TypeVar("P", bound=Reply)


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

    def restore(self, uploads: dict[int, dict[str, object]], rounds: dict[int, int]) -> None:
        """Restore the cache from a checkpoint. Raises ``ValueError`` if a file is missing."""
        self.in_memory = {k: self.kind.model_validate(reply) for k, reply in uploads.items()}
        self.rounds = dict(rounds)
        for k in self.rounds.keys() - self.in_memory.keys():
            if not self._path(k).exists():
                raise ValueError(f"{self._path(k)} is missing: the cached model of client {k}")

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
