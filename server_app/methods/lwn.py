"""LWN, server half: distil the max-ensemble of the small networks on noise."""

from typing import final

from common.exchange.records import StateDict
from common.methods.lwn import Options, Reply
from server_app.distillation.noise import combined, distil
from server_app.global_model import Averaged
from server_app.method import Metrics, Replies


@final
class LWN(Averaged[Options, Reply]):
    """Server with w ← w − η_s ∇ KL(max_i σ(S(z; s_i)) ‖ σ(S(z; w)))."""

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        return super().combine(replies, previous) if self.options.init == "average" else previous

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        small = [(self.global_spec, reply.w) for _, reply in replies]
        transfer = combined(self.config.noise, len(small), "ensemble")
        return {"distill_loss": distil(self, t, small, transfer)}
