"""A server half around another: every hook is the inner one's unless a wrapper says otherwise."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from common.journal import Entry
from common.models.classifier import Classifier
from common.protocol import Down, Up
from common.records import StateDict
from server_app.global_model import Combining, T
from server_app.method import Client, Metrics, Models, O, Ups


class Wrapper(Combining[O, T], ABC):
    """``inner``: the method, or another wrapper around it."""

    def __init__(self, inner: Combining[O, T]) -> None:
        self.inner = inner
        self.answers, self.gains = inner.answers, inner.gains  # type: ignore[misc]
        super().__init__(inner.task, inner.global_spec)

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        self.inner.begin(clients)
        self.main = self.inner.main
        self.global_spec = self.inner.global_spec

    def down(self, t: int) -> Down | Callable[[Client], Down]:
        return self.inner.down(t)

    def check(self, client: Client, up: T) -> None:
        self.inner.check(client, up)

    def change(self, sent: Down, up: T) -> Iterator[tuple[str, Tensor]]:
        return self.inner.change(sent, up)

    def cached(self, up: T) -> T:
        return self.inner.cached(up)

    def aggregate(self, ups: Ups[T], previous: Models) -> Models:
        return self.inner.aggregate(ups, previous)

    def after(self, t: int, ups: Ups[T]) -> Metrics:
        return self.inner.after(t, ups)

    def refine(self, t: int, ups: Ups[T], models: Models) -> tuple[Models, Metrics]:
        return self.inner.refine(t, ups, models)

    def second(self, t: int, ups: Ups[T]) -> dict[int, Down]:
        return self.inner.second(t, ups)

    def receive_second(self, gains: Sequence[tuple[Client, Up]], entry: Entry) -> None:
        self.inner.receive_second(gains, entry)

    def measured_by(self, name: str) -> Sequence[Client]:
        return self.inner.measured_by(name)

    def ensembles(self, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
        return self.inner.ensembles(nets)

    def numbers(self, ups: Ups[T]) -> int | None:
        return self.inner.numbers(ups)

    def drawn(self) -> Models:
        return self.inner.drawn()

    def parts(self, models: Models) -> Models:
        return self.inner.parts(models)

    def trains(self, client: Client) -> str:
        return self.inner.trains(client)

    def start(self, models: Models, client: Client) -> StateDict:
        return self.inner.start(models, client)

    def flat(self, models: Models) -> StateDict:
        return self.inner.flat(models)

    def network(self, spec: str) -> Classifier:
        return self.inner.network(spec)

    def rest(self) -> None:
        self.inner.rest()
