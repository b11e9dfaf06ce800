"""Heterogeneous FedFL, server half: distil the clients' own models on noise, average nothing."""

from typing import final

from common import tree
from common.losses.distillation import kl
from common.methods.hetfedfl import Options, Up
from server_app.distil.noise import distil, largest, weighted
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Ups


@final
class HetFedFL(GlobalModel[Options, Up]):
    """w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w)), or from the clients' max-ensemble."""

    answers = Up

    def check(self, client: Client, up: Up) -> None:
        own = self.task.expected(client.model)
        tree.check_like(up.local, own, f"local ({client.model})")

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        noise = self.config.noise
        if self.options.transfer == "ensemble":
            transfer = largest(noise.max_norm, noise.temperature)
        else:
            transfer = weighted(kl, [1 / len(ups)] * len(ups), noise.temperature)
        teachers = [(client.model, up.local) for client, up in ups]
        return {"distill_loss": distil(self, t, teachers, transfer)}
