"""Local training, server half: says when a round begins, and hears how it went."""

from typing import final

from common.exchange.records import Records
from common.methods.local import Options, Reply, Request
from server_app.method import Method, Metrics, Replies


@final
class State(Records, kind="local.State"):
    """Nothing: all that there is lies with the clients."""


@final
class Local(Method[Options, Reply]):
    """No model, no step."""

    reply_type, state_type = Reply, State

    def request(self, t: int) -> Request:
        return Request()

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        return {}

    def model(self) -> None:
        return None
