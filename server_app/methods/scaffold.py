"""SCAFFOLD, server half: the mean of the clients' models, and of their control variates."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import final

import torch

from common import protocol, tree
from common.methods.scaffold import Down, Options, Up
from common.records import Records, StateDict
from server_app.combine.mean import average_layers
from server_app.global_model import Averaged
from server_app.method import Client, Metrics, Ups


@final
class State(Records):
    w: StateDict
    c: StateDict
    accepted: dict[int, int]


@final
class Scaffold(Averaged[Options, Up]):
    """w ← w + η_g Σ_k p_k (y_k − w);  c ← c + 1/N Σ_k Δc_k."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.c: StateDict = {}
        self.accepted: dict[int, int] = {}  #: the last round counted into c, by client
        self.keys: dict[str, dict[str, str]] = {}  #: by architecture: the key in c of a parameter

    def begin(self, clients: Sequence[Client]) -> None:
        """Every architecture that is trained has its variates, its own ones under ``same``."""
        super().begin(clients)
        for spec in sorted({self.trains(client) for client in clients}):
            apart = f"{spec}/" if self.config.average.across == "same" else ""
            net = self.net if spec == self.global_spec else self.build(spec)
            zeros = {name: torch.zeros_like(w.cpu()) for name, w in net.named_parameters()}
            self.keys[spec] = {name: apart + name for name in zeros}
            self.c = {apart + name: zero for name, zero in zeros.items()} | self.c

    def down(self, t: int) -> Callable[[Client], Down]:
        """Equal payloads are one object, which is packed once."""
        self.t = t
        self.sent = {self.global_spec: Down(w=self.w, c=self.c, accepted=0)}

        @cache
        def payload(accepted: int) -> Down:
            return Down(w=self.w, c=self.c, accepted=accepted)

        return lambda client: payload(self.accepted.get(client.k, 0))

    def part(self, client: Client, sent: protocol.Down, w: StateDict) -> protocol.Down:
        c = {name: self.c[key] for name, key in self.keys[client.model].items()}
        told = sent.model_copy(update={"w": w, "c": c})
        assert isinstance(told, Down)
        self.sent[client.model] = told
        return told

    def check(self, client: Client, up: Up) -> None:
        super().check(client, up)
        sent = self.sent[self.trains(client)]
        tree.check_like(up.dc, sent.c, "dc")
        expected = self.options.change(self.task, self.t, client.n, sent, up.w)
        for name, value in expected.items():
            apart = (up.dc[name] - value).abs()
            rounding = 1e-5 * (value.abs() + sent.c[name].abs())
            if not bool((apart.isfinite() & (apart <= rounding)).all()):
                raise ValueError(f"dc: {name!r} does not follow from w")

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        mean, step = super().combine(ups, previous), self.options.server_lr
        if step == 1:
            return mean
        moved = tree.mean([previous, mean], [1 - step, step])
        return {name: moved[name] if name in self.c else mean[name] for name in mean}

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        keys = {client.k: self.keys[self.trains(client)] for client in self.clients}
        moves = [{keys[c.k][name]: d for name, d in up.dc.items()} for c, up in ups]
        options, names = self.config.average, self.c.keys()
        mean = average_layers(moves, [1] * len(moves), self.c, options, names)
        moved = Counter(key for move in moves for key in move)
        having = Counter(key for own in keys.values() for key in own.values())
        self.c = {key: c + moved[key] / having[key] * mean[key] for key, c in self.c.items()}
        self.accepted = {**self.accepted, **{client.k: t for client in ups.clients}}
        return {}

    def cached(self, up: Up) -> Up:
        return super().cached(up).model_copy(update={"dc": {}})
