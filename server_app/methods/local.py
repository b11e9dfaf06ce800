"""Local training, server half: start the rounds and collect the metrics."""

from typing import final

from common.exchange.records import Records
from common.methods.local import Options, Reply, Request
from server_app.method import Method, Metrics, Replies


@final
class State(Records, kind="local.State"):
    """Empty state: only the clients store models."""


@final
class Local(Method[Options, Reply]):
    """Server without a model."""

    state_type = State

    def request(self, t: int) -> Request:
        return Request()

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        return {}

    def model(self) -> None:
        return None
