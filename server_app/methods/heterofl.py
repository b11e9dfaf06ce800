"""HeteroFL and FedRolex, server half: choose each client's part for ``aggregation/width.py``."""

from collections.abc import Callable
from functools import cache
from typing import final

import torch
from torch import Tensor

from common import models
from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.heterofl import Partial, Reply, Request
from common.techniques.widths import Submodel
from server_app.aggregation.width import Width
from server_app.global_model import Averaged, Weights
from server_app.method import Client


@final
class State(Weights, kind="heterofl.State"):
    counts: StateDict = {}  #: U; empty before the first round, and without ``update-counts``


@final
class HeteroFL(Averaged[Partial, Reply]):
    """Server with w[e] ← Σ_{k has e} w_k[e] / |{k has e}|.

    With ``fedrolex.update-counts``, w[e] ← Σ_j (U[e] + j − 1) w_j[e] / Σ_j (U[e] + j − 1) outside
    convolutions, j = 1, 2, … for the clients that have e.
    """

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        by_width = self.options.by_width
        self.matching = Width(
            self.task, self.submodel, self.update_counts, by_width=by_width, widest=True
        )
        self.counts: StateDict = {}
        self.t = 1  # the census also looks at what clients train

    def update_counts(self, w: StateDict) -> dict[str, Tensor]:
        """Return the counts of updates by entry of w, which the mean of this round increases."""
        if self.options.by_updates:
            counted = {n: x for n, x in w.items() if x.is_floating_point() and x.dim() < 3}
            start = self.counts or {name: torch.ones_like(x) for name, x in counted.items()}
            self.counts = {name: count.clone() for name, count in start.items()}
        return self.counts

    def architectures(self) -> list[str]:
        redrawn = self.options.rates == "redrawn"
        return sorted(set(self.config.fleet)) if redrawn else super().architectures()

    def submodel(self, client: Client, t: int) -> Submodel:
        """Return the client's part of the widest network in round t."""
        return self.options.submodel(self.task, client.info, t)

    def trains(self, client: Client) -> str:
        return self.submodel(client, self.t).spec

    def check(self, client: Client, reply: Reply) -> None:
        spec = self.submodel(client, reply.t).spec
        tree.check_like(reply.w, self.task.expected(spec), f"w ({spec})")

    def request(self, t: int) -> Callable[[Client], Request]:
        """Return requests without weights; ``aggregation/width.py`` adds each client's block."""
        self.t = t
        largest = max(models.parse(spec)[1] for spec in self.architectures())

        @cache
        def payload(spec: str) -> Request:
            return Request(w={}, spec=spec, rate=models.parse(spec)[1] / largest)

        return lambda client: payload(self.trains(client))
