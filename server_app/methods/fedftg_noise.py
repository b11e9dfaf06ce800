"""Modified FedFTG, server half: average, then distil the clients on noise.

Contract: common/methods/fedftg_noise.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.losses.distillation import kl
from common.methods import fedftg_noise as contract
from common.records import StateDict
from server_app.combine.averaging import average
from server_app.distil.noise import distil, weighted
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class FedFTGNoise(GlobalModel[contract.Up]):
    """w ← w + η Σ (w_i − w), then w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w))."""

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
        sizes = [client.n for client, _ in ups]
        mean = average([up.w for _, up in ups], sizes, self.w, o, self.net)
        self.w = towards(self.w, mean, o.aggregate_lr)
        teachers = [(self.global_spec, up.w) for _, up in ups]
        transfer = weighted(kl, [1 / len(ups)] * len(ups), o.kd_temperature)
        self.w, loss = distil(self, t, self.w, teachers, transfer)
        return {**mean_metrics(ups), "distill_loss": loss}

    @property
    def eval_bn(self) -> str:
        return self.options.eval_bn


def towards(w: StateDict, mean: StateDict, step: float) -> StateDict:
    """w + step · (mean − w); step 1 is ``mean`` itself. Variances stay at or above 0."""
    if step == 1:
        return mean
    moved = {}
    for name, value in mean.items():
        if value.is_floating_point():
            value = w[name] + step * (value - w[name])
            value = value.clamp_min(0) if name.endswith("running_var") else value
        moved[name] = value
    return moved
