"""FlexLoRA, server half: decompose the mean update, and cut it to each client's rank."""

from collections.abc import Callable
from functools import cache
from typing import final

import torch

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.flexlora import Options, Reply, Request
from common.methods.flora import added
from common.models.adapters import A, B, pairs
from common.models.classifier import Classifier
from common.techniques.low_rank import combined
from server_app.dense_update import DenseUpdate
from server_app.global_model import Weights
from server_app.method import Client, Metrics, Replies


@final
class State(Weights, kind="flexlora.State"):
    factors: StateDict


@final
class FlexLoRA(DenseUpdate[Options]):
    """Server with ΔW ← Σ_k p_k s_k B_k A_k = B A, where A has orthonormal rows."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.factors: StateDict = {}  #: A and B of ΔW, s in B; empty before the first round

    def request(self, t: int) -> Callable[[Client], Request]:
        @cache
        def payload(spec: str) -> Request:
            return Request(w=self.approximation(spec))

        return lambda client: payload(self.trains(client))

    def approximation(self, spec: str) -> StateDict:
        """Return the adapter of an architecture's rank that is nearest to ΔW, and the head."""
        w, s = tree.snapshot(self.build(spec)), self.scale(spec)
        for layer, a, b in pairs(self.factors):
            r = min(len(a), len(w[f"{layer}.{A}"]))
            w[f"{layer}.{A}"][:r] = a[:r]
            w[f"{layer}.{B}"][:, :r] = b[:, :r] / s
        return {name: self.w.get(name, value) for name, value in w.items()}

    def approximations(self) -> dict[str, Classifier]:
        specs = self.architectures() if self.factors else ()
        return {spec: self.build(spec, self.approximation(spec)) for spec in specs}

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        p, self.factors = self.shares(replies), {}
        for layer, sent in self.scaled(replies).items():
            a, b = combined(sent, p)
            self.factors |= {f"{layer}.{A}": a, f"{layer}.{B}": b}
        new = {name: torch.zeros_like(value) for name, value in self.w.items()}
        self.w = {**added(new, [self.factors]), **self.means(replies)}
        return {}
