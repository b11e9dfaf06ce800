"""Heterogeneous FedFL, server half: distil the clients' own models on noise, average nothing.

Contract: common/methods/hetfedfl.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.losses.distillation import kl
from common.methods import hetfedfl as contract
from server_app.distil.noise import distil, largest, weighted
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class HetFedFL(GlobalModel[contract.Up]):
    """w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w)), or from the clients' max-ensemble."""

    answers = contract.Up

    def prepare(self) -> None:
        super().prepare()
        self.options: contract.Config = self.config.method

    def down(self, t: int) -> contract.Down:
        return contract.Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: contract.Up) -> None:
        tree.check_like(up.local, self.expected(client.model), f"local ({client.model})")

    def step(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        o = self.options
        if o.transfer == "ensemble":
            transfer = largest(o.max_ensemble_norm, o.kd_temperature)
        else:
            transfer = weighted(kl, [1 / len(ups)] * len(ups), o.kd_temperature)
        locals_ = [(client.model, up.local) for client, up in ups]
        self.w, loss = distil(self, t, self.w, locals_, transfer)
        return {**mean_metrics(ups), "distill_loss": loss}

    @property
    def eval_bn(self) -> str:
        return self.options.eval_bn
