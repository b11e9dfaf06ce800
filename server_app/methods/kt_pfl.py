"""KT-pFL, server half: learn whom each client learns from."""

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

MOST = 100
"""Clients up to whose number the coefficients stand in the journal."""


@final
class Coefficients(Records, kind="kt_pfl.Coefficients"):
    c: Float[Tensor, "N N"]


@final
class KTpFL(Agreement[Options]):
    """c_k ← σ(s (c_k − r ∂L/∂c_k)), then Σ_j c_kj p_j to client k."""

    state_type = Coefficients

    def prepare(self) -> None:
        super().prepare()
        self.c = torch.empty(0, 0)

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        if not self.c.numel():  # a resumed run has them
            self.c = torch.full((len(clients), len(clients)), 1 / len(clients))

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        p = torch.stack([said.flatten() for said in self.said(replies)])
        present = torch.tensor([client.k for client in replies.clients])
        c = self.c.clone()
        for i, k in enumerate(present):
            own = c[k, present]
            c[k, present] = own.sum() * self.options.learnt(own / own.sum(), p, i)
        self.c = c
        return {}

    def second(self, t: int, replies: Replies[Reply]) -> dict[int, Request]:
        said, present = self.said(replies), [client.k for client in replies.clients]
        own = self.c[present][:, present]
        rows = own / own.sum(1, keepdim=True)
        return {k: self.answer(said, row) for k, row in zip(present, rows, strict=True)}

    def aggregate_second(self, gains: Sequence[tuple[Client, AnyUp]], entry: Entry) -> None:
        super().aggregate_second(gains, entry)
        if len(self.c) <= MOST:
            entry.coefficients = [[round(x, 4) for x in row] for row in self.c.tolist()]
