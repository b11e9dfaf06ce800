"""LWN, server half: distil the largest opinion of the small networks."""

from typing import final

from common.methods.lwn import Options, Up
from common.records import StateDict
from server_app.distil.noise import distil, largest
from server_app.global_model import Averaged
from server_app.method import Metrics, Ups


@final
class LWN(Averaged[Options, Up]):
    """w ← w − η_s ∇ KL(max_i σ(S(z; s_i)) ‖ σ(S(z; w)))."""

    answers = Up

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        return super().combine(ups, previous) if self.options.init == "average" else previous

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        noise = self.config.noise
        small = [(self.global_spec, up.w) for _, up in ups]
        loss = distil(self, t, small, largest(noise.max_norm, noise.temperature))
        return {"distill_loss": loss}
