"""Modified FedFTG, server half: average, then distil the clients' models on noise."""

from typing import final

from common.exchange.records import StateDict
from common.methods.fedftg_noise import Options, Reply
from server_app.distillation.noise import combined, distil
from server_app.global_model import Averaged
from server_app.method import Metrics, Replies


@final
class FedFTGNoise(Averaged[Options, Reply]):
    """Server with w ← w + η Σ (w_i − w), then w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w))."""

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        return towards(previous, super().combine(replies, previous), self.options.aggregate_lr)

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        teachers = [(self.global_spec, reply.w) for _, reply in replies]
        transfer = combined(self.config.noise, len(teachers))
        return {"distill_loss": distil(self, t, teachers, transfer)}


def towards(w: StateDict, mean: StateDict, step: float) -> StateDict:
    """Return w + step · (mean − w); ``mean`` itself for step 1. Variances are at least 0."""
    if step == 1:
        return mean
    moved = {}
    for name, value in mean.items():
        if value.is_floating_point():
            value = w[name] + step * (value - w[name])
            value = value.clamp_min(0) if name.endswith("running_var") else value
        moved[name] = value
    return moved
