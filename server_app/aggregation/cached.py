"""Overall clients aggregated (OCA): ŵ over every client's latest upload (FedKF, section IV-A, T1).

Beside the model of the active clients (ACA), which is still what is sent, the server combines the
cached uploads of all clients in order of k, as the method combines those of the active ones. ŵ is
then the run's model, and both are scored. With everybody active in every round they are equal.

The cache is bounded: the newest uploads are in memory and part of the checkpoint; the others are
files, one for each client, of which the checkpoint holds the rounds. A file stays while one of the
last ``keep`` checkpoints names it.
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
    uploads: dict[int, dict[str, object]]  #: those in memory, by client
    rounds: dict[int, int]


@final
class Oca(Averaged[O, T]):
    """In front of a method: ŵ ← its combination of the latest uploads of all clients that have
    uploaded.
    """

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
        """Every client's last upload; under ``oca.init = "w0"`` the first model of the others."""
        uploads, anew = self.uploads, self.config.oca.init == "w0"
        first = self.drawn() if anew else {}

        def load(client: Client) -> T:
            if client.k in uploads:
                return uploads.get(client.k)
            return uploads.kind.model_construct(w=self.start(first, client))

        return Replies([c for c in self.clients if anew or c.k in uploads], load)

    # What is scored.

    def model(self) -> Classifier:
        return list(self.classifiers(self.overall).values())[-1]

    def networks(self) -> dict[str, Classifier]:
        return self.classifiers(self.overall) if super().networks() else {}

    def further(self) -> dict[str, Models]:
        """The ACA model, and what the method itself would have scored."""
        found = {"aca": self.parts(self.models)}
        if super().name != "global" and (w := super().weights_to_score()) is not None:
            found[super().name] = {self.global_spec: w}
        return {**found, **super().further()}

    def weights_to_score(self) -> StateDict:
        return self.flat(self.overall)

    def state(self) -> State:
        held = {k: dict(reply) for k, reply in self.uploads.held.items()}
        rounds, inner = self.uploads.rounds, dict(super().state())
        return State(inner=inner, overall=self.overall, uploads=held, rounds=rounds)

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
    """One upload of ``kind`` for each client that ever sent one; at most ``limit`` in memory."""

    def __init__(self, kind: type[P], folder: Path, limit: int, keep: int = 1) -> None:
        self.kind, self.folder = kind, folder / "uploads"
        self.limit, self.keep = limit, keep
        self.held: dict[int, P] = {}  #: in memory, by client
        self.rounds: dict[int, int] = {}  #: the round of every client's upload

    def put(self, t: int, uploads: Sequence[tuple[int, P]]) -> None:
        """Take round t's uploads; the oldest of those in memory make room (ties: larger k)."""
        self._sweep(t)
        for k, reply in uploads:
            self.held[k], self.rounds[k] = reply, t
        oldest = sorted(self.held, key=lambda k: (self.rounds[k], -k))
        for k in oldest[: max(len(oldest) - self.limit, 0)]:
            self._path(k).parent.mkdir(parents=True, exist_ok=True)
            upload = Upload(k=k, t=self.rounds[k], up=dict(self.held.pop(k)))
            write_atomically(self._path(k), upload.pieces(), private=True)

    def __contains__(self, k: int) -> bool:
        return k in self.rounds

    def get(self, k: int) -> P:
        """Client k's upload. Raises ``ValueError`` naming a file that is missing or damaged."""
        if k in self.held:
            return self.held[k]
        return self.kind.model_validate(Upload.load(self._path(k)).up)

    def restore(self, held: dict[int, dict[str, object]], rounds: dict[int, int]) -> None:
        """Take up what a checkpoint holds. Raises ``ValueError`` if a file is not there."""
        self.held = {k: self.kind.model_validate(reply) for k, reply in held.items()}
        self.rounds = dict(rounds)
        for k in self.rounds.keys() - self.held.keys():
            if not self._path(k).exists():
                raise ValueError(f"{self._path(k)} is missing: the cached model of client {k}")

    def _path(self, k: int) -> Path:
        return self.folder / f"{k}-{self.rounds[k]}.safetensors"

    def _sweep(self, t: int) -> None:
        """Remove the files that none of the last ``keep`` checkpoints, of t - 1 and before, names.

        A client's upload is named until the round of its next one.
        """
        found: dict[int, list[tuple[int, Path]]] = {}
        for path in self.folder.glob("*-*.safetensors") if self.folder.exists() else ():
            client, _, when = path.stem.partition("-")
            found.setdefault(int(client), []).append((int(when), path))
        for k, files in found.items():
            rounds = sorted({r for r, _ in files if r < t} | {self.rounds.get(k, t)})
            for r, path in files:
                later = next((each for each in rounds if each > r), t)
                if r >= t or r > self.rounds.get(k, -1) or later <= t - self.keep:
                    path.unlink()
