"""SCAFFOLD, server half: average the clients' models and their control variates."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import final

import torch

from common.exchange import protocol, tree
from common.exchange.records import StateDict
from common.methods.scaffold import Options, Reply, Request
from server_app.aggregation.mean import average_layers
from server_app.global_model import Averaged, Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="scaffold.State"):
    c: StateDict
    accepted: dict[int, int]


@final
class Scaffold(Averaged[Options, Reply]):
    """Server with w ← w + η_g Σ_k p_k (y_k − w) and c ← c + 1/N Σ_k Δc_k."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.c: StateDict = {}
        self.accepted: dict[int, int] = {}  #: last round counted into c, by client
        self.keys: dict[str, dict[str, str]] = {}  #: key in c, by architecture and parameter

    def begin(self, clients: Sequence[Client]) -> None:
        """Create the variates of every trained architecture; under ``same`` each has its own."""
        super().begin(clients)
        for spec in self._specs():
            prefix = f"{spec}/" if self.config.average.across == "same" else ""
            net = self.net if spec == self.global_spec else self.build(spec)
            zeros = {name: torch.zeros_like(w.cpu()) for name, w in net.named_parameters()}
            self.keys[spec] = {name: prefix + name for name in zeros}
            self.c = {prefix + name: zero for name, zero in zeros.items()} | self.c

    def _specs(self) -> list[str]:
        """Return the trained architectures of the roster."""
        own = self.config.average.across != "none"
        return self.architectures() if own else [self.global_spec]

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:  # c is the mean of the c_k, and no other client's c_k is known here
            self.c = {name: torch.zeros_like(c) for name, c in self.c.items()}
            self.accepted = {}

    def request(self, t: int) -> Callable[[Client], Request]:
        """Return a function of the client; equal payloads are one object, to pack them once."""

        @cache
        def payload(accepted: int) -> Request:
            return Request(w=self.w, c=self.c, accepted=accepted)

        return lambda client: payload(self.accepted.get(client.k, 0))

    def own_request(self, client: Client, sent: protocol.Request, w: StateDict) -> protocol.Request:
        c = {name: self.c[key] for name, key in self.keys[client.architecture].items()}
        return sent.model_copy(update={"w": w, "c": c})

    def check(self, client: Client, reply: Reply) -> None:
        super().check(client, reply)
        sent = self.sent[client.k]
        assert isinstance(sent, Request)
        tree.check_like(reply.dc, sent.c, "dc")
        expected = self.options.change(self.task, reply.t, client.n, sent, reply.w)
        for name, value in expected.items():
            error = (reply.dc[name] - value).abs()
            rounding = 1e-5 * (value.abs() + sent.c[name].abs())
            if not bool((error.isfinite() & (error <= rounding)).all()):
                raise ValueError(f"dc: {name!r} does not follow from w")

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        mean, step = super().combine(replies, previous), self.options.server_lr
        if step == 1:
            return mean
        moved = tree.mean([previous, mean], [1 - step, step])
        return {name: moved[name] if name in self.c else mean[name] for name in mean}

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        keys = {client.k: self.keys[self.trains(client)] for client in self.clients}
        counted = [(client, reply) for client, reply in replies if self._counts(client)]
        moves = [{keys[c.k][name]: d for name, d in reply.dc.items()} for c, reply in counted]
        if not moves:
            return {}
        options, names = self.config.average, self.c.keys()
        mean = average_layers(moves, [1] * len(moves), self.c, options, names)
        moved = Counter(key for move in moves for key in move)
        across = self.config.average.across != "none"
        trained = [spec if across else self.global_spec for spec in self.roster.values()]
        owners = Counter(key for spec in trained for key in self.keys[spec].values())
        self.c = {key: c + moved[key] / owners[key] * mean[key] for key, c in self.c.items()}
        self.accepted = {**self.accepted, **{client.k: reply.t for client, reply in counted}}
        return {}

    def _counts(self, client: Client) -> bool:
        """Return whether Δc_k is of the c_k in c: not if c began anew while the client trained."""
        sent = self.sent.get(client.k)
        return not isinstance(sent, Request) or sent.accepted == self.accepted.get(client.k, 0)

    def cached(self, reply: Reply) -> Reply:
        return super().cached(reply).model_copy(update={"dc": {}})
