"""LWN, server half: distil the largest opinion of the small networks.

Contract: common/methods/lwn.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.methods import lwn as contract
from server_app.combine.averaging import average
from server_app.distil.noise import distil, largest
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class LWN(GlobalModel[contract.Up]):
    """w ← w − η_s ∇ KL(max_i σ(S(z; s_i)) ‖ σ(S(z; w)))."""

    answers = contract.Up

    def prepare(self) -> None:
        super().prepare()
        self.options: contract.Config = self.config.method

    def down(self, t: int) -> contract.Down:
        return contract.Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: contract.Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        o = self.options
        if o.init == "average":
            sizes = [client.n for client, _ in ups]
            self.w = average([up.w for _, up in ups], sizes, self.w, o, self.net)
        small = [(self.global_spec, up.w) for _, up in ups]
        transfer = largest(o.max_ensemble_norm, o.kd_temperature)
        self.w, loss = distil(self, t, self.w, small, transfer)
        return {**mean_metrics(ups), "distill_loss": loss}

    @property
    def eval_bn(self) -> str:
        return self.options.eval_bn
