"""FLoRA, server half: add the sum of the clients' products to the update."""

from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor

from common.exchange import protocol, tree
from common.exchange.records import StateDict
from common.methods.flora import Options, Reply, Request, added
from common.models.adapters import A, B, W
from server_app.dense_update import DenseUpdate
from server_app.global_model import Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="flora.State"):
    stack: list[StateDict]
    holders: list[int]


@final
class FLoRA(DenseUpdate[Options]):
    """Server with ΔW ← ΔW + Σ_k p_k s_k B_k A_k."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.stack: list[StateDict] = []  #: factors of the last round, if they are sent
        self.holders: list[int] = []  #: clients that have stored ΔW before the last round

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:
            self.holders = [k for k in self.holders if k != client.k]

    def request(self, t: int) -> Callable[[Client], Request]:
        whole = Request(w=self.w)
        head = {name: value for name, value in self.w.items() if not name.endswith(f".{W}")}
        change = Request(w=head, stack=self.stack) if self.stack else whole
        return lambda client: change if client.k in self.holders else whole

    def change(self, sent: protocol.Request, reply: Reply) -> Iterator[tuple[str, Tensor]]:
        b = {name: value for name, value in reply.w.items() if name.endswith(f".{B}")}
        yield from tree.steps({name: torch.zeros_like(value) for name, value in b.items()}, b)

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        p, stack = self.shares(replies), [dict[str, Tensor]() for _ in replies.clients]
        for layer, sent in self.scaled(replies).items():
            for share, (a, b), factors in zip(p, sent, stack, strict=True):
                factors |= {f"{layer}.{A}": a, f"{layer}.{B}": share * b}
        self.w = {**self.w, **added(self.w, stack), **self.means(replies)}
        if self.options.stacks:
            self.stack, self.holders = stack, [client.k for client in replies.clients]
        return {}
