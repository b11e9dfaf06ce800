"""Local training, server half: says when a round begins, and hears how it went."""

from typing import final

from common.methods.local import Down, Options, Up
from common.records import Records
from server_app.method import Method, Metrics, Ups


@final
class State(Records):
    """Nothing: all that there is lies with the clients."""


@final
class Local(Method[Options, Up]):
    """No model, no step."""

    answers, keeps = Up, State

    def down(self, t: int) -> Down:
        return Down()

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        return {}

    def model(self) -> None:
        return None
