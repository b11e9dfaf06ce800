"""FedRolex, server half: HeteroFL's, and the released code's update counts."""

from typing import final

import torch
from torch import Tensor

from common.exchange.records import Records, StateDict
from common.methods.fedrolex import Options
from server_app.methods.heterofl import HeteroFL


@final
class State(Records, kind="fedrolex.State"):
    w: StateDict
    counts: StateDict = {}


@final
class FedRolex(HeteroFL):
    """Server with w[e] ← Σ_j (U[e] + j − 1) w_j[e] / Σ_j (U[e] + j − 1) for ``update-counts``."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.counts: StateDict = {}  #: U, by entry; empty before the first round, and without U

    def update_counts(self, w: StateDict) -> dict[str, Tensor]:
        assert isinstance(self.options, Options)
        if self.options.update_counts:
            counted = {n: x for n, x in w.items() if x.is_floating_point() and x.dim() != 4}
            start = self.counts or {name: torch.ones_like(x) for name, x in counted.items()}
            self.counts = {name: count.clone() for name, count in start.items()}
        return self.counts
