"""SCAFFOLD, server half: the mean of the clients' models, and of their control variates."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from common import tree
from common.methods.scaffold import Down, Options, Up
from common.records import Records, StateDict
from server_app.combine.mean import combine
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
        self.c = {name: torch.zeros_like(w.cpu()) for name, w in self.net.named_parameters()}
        self.accepted: dict[int, int] = {}  #: the last round counted into c, by client

    def down(self, t: int) -> Callable[[Client], Down]:
        """Equal payloads are one object, which is packed once."""
        self.t, self.sent = t, Down(w=self.w, c=self.c, accepted=0)
        payloads = {0: self.sent}

        def to(client: Client) -> Down:
            accepted = self.accepted.get(client.k, 0)
            changed = self.sent.model_copy(update={"accepted": accepted})
            return payloads.setdefault(accepted, changed)

        return to

    def check(self, client: Client, up: Up) -> None:
        super().check(client, up)
        tree.check_like(up.dc, self.c, "dc")
        expected = self.options.change(self.task, self.t, client.n, self.sent, up.w)
        for name, value in expected.items():
            apart = (up.dc[name] - value).abs()
            rounding = 1e-5 * (value.abs() + self.sent.c[name].abs())
            if not bool((apart.isfinite() & (apart <= rounding)).all()):
                raise ValueError(f"dc: {name!r} does not follow from w")

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        mean, step = super().combine(ups, previous), self.options.server_lr
        if step == 1:
            return mean
        moved = tree.mean([previous, mean], [1 - step, step])
        return {name: moved[name] if name in self.c else mean[name] for name in mean}

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        mean = combine((up.dc for _, up in ups), [1] * len(ups), self.config.average)
        share = len(ups) / len(self.clients)
        self.c = {name: c + share * mean[name] for name, c in self.c.items()}
        self.accepted = {**self.accepted, **{client.k: t for client in ups.clients}}
        return {}

    def cached(self, up: Up) -> Up:
        return super().cached(up).model_copy(update={"dc": {}})
