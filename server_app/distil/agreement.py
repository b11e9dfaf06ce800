"""Rounds of two exchanges about a public subset: clients speak, then learn the server's answer."""

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from torch import Tensor

from common.ensemble import weighted_sum
from common.journal import Entry
from common.methods.fedmd import Answer, Down, Learnt, Speaking, Up
from common.predictions import spoken
from common.protocol import Up as AnyUp
from common.records import Records
from server_app.distil.public_set import Seeing
from server_app.method import Client, Metrics, Ups, mean_metrics

A = TypeVar("A", bound=Speaking)


class State(Records):
    """Nothing: all that there is lies with the clients."""


class Agreement(Seeing[A, Up], ABC):
    """No model of its own; a method says in ``second`` what each client hears."""

    answers, gains, trains_second = Up, Learnt, True
    keeps: ClassVar[type[Records]] = State

    def down(self, t: int) -> Down:
        return Down()

    def check(self, client: Client, up: Up) -> None:
        up.check_predictions(
            (self.of_a_round, self.task.num_classes),
            self.config.wire.dtype,
            probabilities=self.options.probabilities,
        )

    def said(self, ups: Ups[Up]) -> list[Tensor]:
        """What each client says, float32 [n, C]."""
        return [up.said(probabilities=self.options.probabilities) for _, up in ups]

    def answer(self, said: Sequence[Tensor], weights: Tensor) -> Answer:
        """Σ_k weights_k said_k, for the wire; ``weights`` [|S_t|] sum to 1."""
        mixed = weighted_sum(said, weights[:, None].expand(-1, len(said[0])))
        dtype, probabilities = self.config.wire.dtype, self.options.probabilities
        return Answer(**spoken(mixed, dtype, probabilities=probabilities))

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        return {}

    def receive_second(self, gains: Sequence[tuple[Client, AnyUp]], entry: Entry) -> None:
        """The journal hears of the training, which is in this exchange."""
        if gains:
            entry.metrics = {**entry.metrics, **mean_metrics(Ups.of(gains))}
        own = {client.k: gain.metrics for client, gain in gains}
        entry.client_metrics = {
            k: {**before, **own.get(k, {})} for k, before in entry.client_metrics.items()
        }

    def model(self) -> None:
        return None

    def numbers(self, ups: Ups[Up]) -> int:
        """What everybody says, and what everybody hears."""
        return 2 * self.of_a_round * self.task.num_classes * len(ups)
