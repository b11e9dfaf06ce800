"""Rounds of two exchanges about a public subset: clients speak, then learn the server's answer."""

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from torch import Tensor

from common.exchange.predictions import spoken
from common.exchange.protocol import Reply as AnyUp
from common.exchange.records import Records
from common.journal import Entry
from common.methods.fedmd import (
    ConsensusReply,
    ConsensusRequest,
    PredictionExchange,
    Reply,
    Request,
)
from common.techniques.ensemble import weighted_sum
from server_app.distillation.public_set import SharedPublicSet
from server_app.method import Client, Metrics, Replies, mean_metrics

A = TypeVar("A", bound=PredictionExchange)


class State(Records, kind="agreement.State"):
    """Nothing: all that there is lies with the clients."""


class Agreement(SharedPublicSet[A, Reply], ABC):
    """No model of its own; a method says in ``second`` what each client hears."""

    reply_type, second_reply_type, trains_second = Reply, ConsensusReply, True
    state_type: ClassVar[type[Records]] = State

    def request(self, t: int) -> Request:
        return Request()

    def check(self, client: Client, reply: Reply) -> None:
        reply.check_predictions(
            (self.of_a_round, self.task.num_classes),
            self.config.wire.dtype,
            probabilities=self.options.probabilities,
        )

    def said(self, replies: Replies[Reply]) -> list[Tensor]:
        """What each client says, float32 [n, C]."""
        return [reply.said(probabilities=self.options.probabilities) for _, reply in replies]

    def answer(self, said: Sequence[Tensor], weights: Tensor) -> ConsensusRequest:
        """Σ_k weights_k said_k, for the wire; ``weights`` [|S_t|] sum to 1."""
        mixed = weighted_sum(said, weights[:, None].expand(-1, len(said[0])))
        dtype, probabilities = self.config.wire.dtype, self.options.probabilities
        return ConsensusRequest(**spoken(mixed, dtype, probabilities=probabilities))

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        return {}

    def aggregate_second(self, gains: Sequence[tuple[Client, AnyUp]], entry: Entry) -> None:
        """The journal hears of the training, which is in this exchange."""
        if gains:
            entry.metrics = {**entry.metrics, **mean_metrics(Replies.of(gains))}
        own = {client.k: gain.metrics for client, gain in gains}
        entry.client_metrics = {
            k: {**before, **own.get(k, {})} for k, before in entry.client_metrics.items()
        }

    def model(self) -> None:
        return None

    def numbers(self, replies: Replies[Reply]) -> int:
        """What everybody says, and what everybody hears."""
        return 2 * self.of_a_round * self.task.num_classes * len(replies)
