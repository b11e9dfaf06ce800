"""Modified FedFTG, server half: average, then distil the clients on noise.

Contract: common/methods/fedftg_noise.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.losses.distillation import kl
from common.methods import fedftg_noise as contract
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.averaging import average
from server_app.census import Client
from server_app.method import Method, Metrics, mean_metrics
from server_app.noise_distillation import distil, weighted


@final
class Memory(Records):
    """What round t + 1 depends on."""

    w: StateDict


@final
class FedFTGNoise(Method[contract.Up]):
    """w ← w + η Σ (w_i − w), then w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w))."""

    answers, keeps = contract.Up, Memory

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.options: contract.Config = self.config.method
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

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

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w)
        return self.net

    @property
    def eval_bn(self) -> str:
        return self.options.eval_bn

    def state(self) -> Memory:
        return Memory(w=self.w)

    def restore(self, state: Memory) -> None:
        self.w = state.w


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
