"""DepthFL, server half: average every layer over the clients that have it."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import final

import torch

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.depthfl import Options, Reply, Request, deepest
from server_app.aggregation.mean import average_layers
from server_app.aggregation.staleness import Discount
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Models, Replies


@final
class State(Weights, kind="depthfl.State"):
    h: StateDict
    accepted: dict[int, int]


@final
class DepthFL(Averaged[Options, Reply]):
    """Server with w ← m − h/α, m the layer-wise mean, and h ← h − α/N Σ_k (w_k − w).

    The global architecture is that of the deepest client of the roster.
    """

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.w: StateDict = {}  # until the census tells the architectures
        self.h: StateDict = {}
        self.accepted: dict[int, int] = {}  #: last round counted into h, by client
        self.changes: dict[int, StateDict] = {}  #: w_k − w_v of replies that are rebased

    def begin(self, clients: Sequence[Client]) -> None:
        self.check_sizes(clients)
        super().begin(clients)
        self.global_spec = deepest(self.architectures())
        self.net = self.build(self.global_spec)
        if not self.w:
            self.begin_models({self.global_spec: tree.snapshot(self.net)})
            parameters = dict(self.net.named_parameters())
            self.h = {name: torch.zeros_like(self.w[name]) for name in parameters}
        elif self.w.keys() != self.task.expected(self.global_spec).keys():
            raise ValueError(f"the checkpoint does not fit {self.global_spec}, the deepest model")

    def admit(self, client: Client) -> None:
        super().admit(client)
        self.check_known(client)

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:  # h is the mean of the g_k, and no other client's g_k is known here
            self.h = {name: torch.zeros_like(h) for name, h in self.h.items()}
            self.accepted = {}

    def measured_by(self, spec: str) -> Sequence[Client]:
        """Return the clients of the same depth: a client never uses a deeper network."""
        return [client for client in self.clients if client.architecture == spec]

    def trains(self, client: Client) -> str:
        return client.architecture

    def start(self, models: Models, client: Client) -> StateDict:
        return tree.cut(models[self.global_spec], self.task.expected(client.architecture))

    def request(self, t: int) -> Callable[[Client], Request]:
        """Return a function of the client; equal payloads are one object, to pack them once."""

        @cache
        def payload(spec: str, accepted: int) -> Request:
            return Request(w=tree.cut(self.w, self.task.expected(spec)), accepted=accepted)

        return lambda client: payload(client.architecture, self.accepted.get(client.k, 0))

    def rebased(self, client: Client, reply: Reply, discount: Discount) -> Reply:
        """Return the reply as one of the newest version; h counts the client's whole change."""
        sent = self.sent[client.k]
        assert isinstance(sent, Request)
        self.changes[client.k] = {n: w - sent.w[n] for n, w in reply.w.items() if n in self.h}
        return super().rebased(client, reply, discount)

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        if self.options.feddyn:
            share, accepted = self.options.alpha / self.roster_size, dict(self.accepted)
            for client, reply in replies:
                sent = self.sent.get(client.k)
                if isinstance(sent, Request) and sent.accepted != self.accepted.get(client.k, 0):
                    continue  # h began anew while the client trained
                change = self.changes.get(client.k) or {
                    n: w - self.w[n] for n, w in reply.w.items() if n in self.h
                }
                changed = {n: self.h[n] - share * step for n, step in change.items()}
                self.h, accepted[client.k] = {**self.h, **changed}, reply.t
            self.accepted = accepted
        self.changes = {}
        return super().step(t, replies)

    def aggregate(self, replies: Replies[Reply], previous: Models) -> Models:
        states = [reply.w for _, reply in replies]
        options, spec = self.config.average, self.global_spec
        mean = average_layers(states, replies.sizes, previous[spec], options, self.parameter_names)
        if not self.options.feddyn:
            return {spec: mean}
        sent = set().union(*states)
        moved = {n: mean[n] - h / self.options.alpha for n, h in self.h.items() if n in sent}
        return {spec: {**mean, **moved}}
