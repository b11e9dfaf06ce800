"""Heterogeneous FedFL, server half: distil the clients' own models on noise, average nothing."""

from typing import final

from common.losses.distillation import kl
from common.methods.hetfedfl import Options, Reply
from common.training import tree
from server_app.distillation.noise import distil, largest, weighted
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies


@final
class HetFedFL(GlobalModel[Options, Reply]):
    """w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w)), or from the clients' max-ensemble."""

    reply_type = Reply

    def check(self, client: Client, reply: Reply) -> None:
        own = self.task.expected(client.model)
        tree.check_like(reply.local, own, f"local ({client.model})")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        noise = self.config.noise
        if self.options.transfer == "ensemble":
            transfer = largest(noise.max_norm, noise.temperature)
        else:
            transfer = weighted(kl, [1 / len(replies)] * len(replies), noise.temperature)
        teachers = [(client.model, reply.local) for client, reply in replies]
        return {"distill_loss": distil(self, t, teachers, transfer)}
