"""KT-pFL, server half: learn the mixture of predictions that is each client's target."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from common.exchange.protocol import Reply as AnyUp
from common.exchange.protocol import Request
from common.exchange.records import Records
from common.journal import Entry
from common.methods.kt_pfl import Options, Reply
from server_app.distillation.agreement import Agreement
from server_app.method import Client, Metrics, Replies

MAX_LOGGED = 100
"""Largest number of clients for which the journal has the coefficients."""


@final
class Coefficients(Records, kind="kt_pfl.Coefficients"):
    c: Float[Tensor, "N N"]  #: knowledge coefficients, one row for each client


@final
class KTpFL(Agreement[Options]):
    """Server with c_k ← σ(s (c_k − r ∂L/∂c_k)); it sends Σ_j c_kj p_j to client k."""

    state_type = Coefficients

    def prepare(self) -> None:
        super().prepare()
        self.c = torch.empty(0, 0)

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        old, N = len(self.c), self.roster_size
        if old < N:  # a new run, or a roster that has grown
            c = torch.full((N, N), 1 / N)
            c[:old, :old] = self.c * old / N
            self.c = c

    def joined(self, client: Client, *, lost: bool) -> None:
        super().joined(client, lost=lost)
        if lost:
            self.c = self.c.clone()
            self.c[client.k] = 1 / self.roster_size

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        p = torch.stack([p_k.flatten() for p_k in self.predictions(replies)])
        present = torch.tensor([client.k for client in replies.clients])
        c = self.c.clone()
        for i, k in enumerate(present):
            row = c[k, present]
            c[k, present] = row.sum() * self.options.learnt(row / row.sum(), p, i)
        self.c = c
        return {}

    def second(self, t: int, replies: Replies[Reply]) -> dict[int, Request]:
        predictions, present = self.predictions(replies), [client.k for client in replies.clients]
        c = self.c[present][:, present]
        rows = c / c.sum(1, keepdim=True)
        return {k: self.consensus(predictions, row) for k, row in zip(present, rows, strict=True)}

    def aggregate_second(self, gains: Sequence[tuple[Client, AnyUp]], entry: Entry) -> None:
        super().aggregate_second(gains, entry)
        if len(self.c) <= MAX_LOGGED:
            entry.coefficients = [[round(x, 4) for x in row] for row in self.c.tolist()]
