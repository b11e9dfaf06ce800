"""Overall clients aggregated (OCA): ŵ over every client's latest upload (FedKF, section IV-A, T1).

Beside the model of the active clients (ACA), which is still what is sent, the server combines the
cached uploads of all clients in order of k, as the method combines those of the active ones. ŵ is
then the run's model, and both are scored. With everybody active in every round they are equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.averaged import Combining, T
from server_app.combine.uploads import Uploads
from server_app.combine.wrapper import Wrapper
from server_app.method import Client, Metrics, Models, O, Ups


@final
class State(Records):
    inner: dict[str, object]
    overall: dict[str, StateDict]  #: ŵ by architecture
    uploads: dict[int, dict[str, object]]  #: those in memory, by client
    rounds: dict[int, int]


@final
class Oca(Wrapper[O, T]):
    """ŵ ← the method's combination of the latest uploads of all clients that have uploaded."""

    keeps, name = State, "oca"

    def __init__(self, inner: Combining[O, T]) -> None:
        super().__init__(inner)
        folder, limit = Path(self.config.run.out), self.config.oca.in_memory
        kind: type[T] = inner.answers  # type: ignore[assignment]
        self.uploads = Uploads(kind, folder, limit)

    @property
    def overall(self) -> Models:  # type: ignore[override]
        return self.inner.overall

    def step(self, t: int, ups: Ups[T]) -> Metrics:
        metrics = self.inner.step(t, ups)
        self.uploads.put(t, [(client.k, self.cached(up)) for client, up in ups])
        self.inner.overall = self.aggregate(self._latest(), self.inner.overall)
        return metrics

    def _latest(self) -> Ups[T]:
        """Every client's last upload; under ``oca.init = "w0"`` the first model of the others."""
        uploads = self.uploads
        if self.config.oca.init == "uploaded":
            return Ups([c for c in self.clients if c.k in uploads], lambda c: uploads.get(c.k))
        first = self.parts(self.drawn())

        def load(client: Client) -> T:
            if client.k in uploads:
                return uploads.get(client.k)
            return uploads.kind.model_construct(w=first[self.trains(client)])

        return Ups(self.clients, load)

    # What is scored.

    def model(self) -> Classifier:
        return list(self.classifiers(self.overall).values())[-1]

    def networks(self) -> dict[str, Classifier]:
        return self.classifiers(self.overall) if self.inner.networks() else {}

    def further(self) -> dict[str, Models]:
        """The ACA model, and what the method itself would have scored."""
        found = {"aca": self.parts(self.inner.models)}
        if self.inner.name != "global" and (w := self.inner.ask()) is not None:
            found[self.inner.name] = {self.global_spec: w}
        return {**found, **self.inner.further()}

    def ask(self) -> StateDict:
        return self.flat(self.overall)

    def state(self) -> State:
        held = {k: dict(up) for k, up in self.uploads.held.items()}
        rounds, inner = self.uploads.rounds, dict(self.inner.state())
        return State(inner=inner, overall=self.overall, uploads=held, rounds=rounds)

    def restore(self, state: Records) -> None:
        assert isinstance(state, State)
        self.inner.restore(self.inner.keeps.model_validate(state.inner))
        self.inner.overall = dict(state.overall)
        self.uploads.restore(state.uploads, state.rounds)
