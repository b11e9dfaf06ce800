"""Rounds of two exchanges: clients send public-set predictions, then learn an aggregate of them."""

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from torch import Tensor

from common.exchange.predictions import encoded
from common.exchange.protocol import Reply as AnyReply
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
    """Empty state: the clients keep all models."""


class Agreement(SharedPublicSet[A, Reply], ABC):
    """Server half without a model; a method's ``second`` returns each client's targets."""

    reply_type, second_reply_type, trains_second = Reply, ConsensusReply, True
    state_type: ClassVar[type[Records]] = State

    def request(self, t: int) -> Request:
        return Request()

    def check(self, client: Client, reply: Reply) -> None:
        reply.check_predictions(
            (self.of_a_round, self.task.num_classes),
            self.config.wire.dtype,
            probabilities=self.options.probabilities,
            one_each=self.task.objective.one_each,
        )

    def predictions(self, replies: Replies[Reply]) -> list[Tensor]:
        """Return each client's predictions, float32 [n, C]."""
        one_each, shares = self.task.objective.one_each, self.options.probabilities
        return [reply.said(probabilities=shares, one_each=one_each) for _, reply in replies]

    def consensus(self, predictions: Sequence[Tensor], weights: Tensor) -> ConsensusRequest:
        """Return the request with Σ_k weights_k predictions_k; ``weights`` [|S_t|] sum to 1."""
        return self.targets(
            weighted_sum(predictions, weights[:, None].expand(-1, len(predictions[0])))
        )

    def targets(self, mixed: Tensor) -> ConsensusRequest:
        """Return the request with the targets ``mixed``, float32 [n, C]."""
        dtype, probabilities = self.config.wire.dtype, self.options.probabilities
        return ConsensusRequest(**encoded(mixed, dtype, probabilities=probabilities))

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        return {}

    def aggregate_second(self, replies: Sequence[tuple[Client, AnyReply]], entry: Entry) -> None:
        """Add the metrics of training, which happens in this exchange, to the entry."""
        if replies:
            entry.metrics = {**entry.metrics, **mean_metrics(Replies.of(replies))}
        trained = {client.k: reply.metrics for client, reply in replies}
        entry.client_metrics = {
            k: {**before, **trained.get(k, {})} for k, before in entry.client_metrics.items()
        }

    def model(self) -> None:
        return None

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return the numbers of the clients' predictions and of the targets that they receive."""
        return 2 * self.of_a_round * self.task.num_classes * len(replies)
