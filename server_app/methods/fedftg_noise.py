"""Modified FedFTG, server half: average, then distil the clients on noise."""

from typing import final

from common.losses.distillation import kl
from common.methods.fedftg_noise import Options, Up
from common.records import StateDict
from server_app.distil.noise import distil, weighted
from server_app.global_model import Averaged
from server_app.method import Metrics, Ups


@final
class FedFTGNoise(Averaged[Options, Up]):
    """w ← w + η Σ (w_i − w), then w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w))."""

    answers = Up

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        return towards(previous, super().combine(ups, previous), self.options.aggregate_lr)

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        teachers = [(self.global_spec, up.w) for _, up in ups]
        transfer = weighted(kl, [1 / len(ups)] * len(ups), self.config.noise.temperature)
        return {"distill_loss": distil(self, t, teachers, transfer)}


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
