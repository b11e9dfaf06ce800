"""RoLoRA, server half: average one half of the adapters. FFA-LoRA uses it too."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import final

from torch import Tensor

from common.exchange import protocol, tree
from common.exchange.records import StateDict
from common.methods.rolora import Halves, Reply, Request
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="rolora.State"):
    holders: list[int]


@final
class RoLoRA(Averaged[Halves, Reply]):
    """Server with B ← Σ_k p_k B_k, or A ← Σ_k p_k A_k."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.holders: list[int] = []  #: clients that have the adapter before the last round

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:
            self.holders = [k for k in self.holders if k != client.k]

    def request(self, t: int) -> Callable[[Client], Request]:
        changing = self.options.changing(self.w)
        changed = self.options.trained(self.w, t - 1)

        @cache
        def payload(holds: bool) -> Request:
            return Request(w=tree.cut(self.w, changed if holds else changing))

        return lambda client: payload(client.k in self.holders)

    def uploaded(self, t: int) -> StateDict:
        return tree.cut(self.w, self.options.trained(self.w, t))

    def change(self, sent: protocol.Request, reply: Reply) -> Iterator[tuple[str, Tensor]]:
        yield from tree.steps(tree.cut(self.w, reply.w), reply.w)

    def check(self, client: Client, reply: Reply) -> None:
        expected = self.task.expected(self.global_spec)
        trained = self.options.trained(expected, reply.t)
        tree.check_like(reply.w, tree.cut(expected, trained), f"w ({self.global_spec})")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        metrics = super().step(t, replies)
        self.holders = [client.k for client in replies.clients]
        return metrics

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        trained = tree.cut(previous, self.options.trained(previous, self.t))
        return {**previous, **super().combine(replies, trained)}
