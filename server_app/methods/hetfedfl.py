"""Heterogeneous FedFL, server half: distil the clients' models on noise, without an average."""

from typing import final

from common.exchange import tree
from common.methods.hetfedfl import Options, Reply
from server_app.distillation.noise import combined, distil
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies


@final
class HetFedFL(GlobalModel[Options, Reply]):
    """Server with w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w)).

    With ``transfer = "ensemble"`` the target is the max-ensemble of the clients' models.
    """

    def check(self, client: Client, reply: Reply) -> None:
        expected = self.task.expected(client.architecture)
        tree.check_like(reply.local, expected, f"local ({client.architecture})")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        transfer = combined(self.config.noise, len(replies), self.options.transfer)
        teachers = [(client.architecture, reply.local) for client, reply in replies]
        return {"distill_loss": distil(self, t, teachers, transfer)}
