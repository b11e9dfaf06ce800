"""FedAvg and FedProx, server half."""

from typing import final

from common.methods.fedavg import Averaging, Up
from server_app.global_model import Averaged
from server_app.method import Ups


@final
class FedAvg(Averaged[Averaging, Up]):
    """w ← Σ_{k∈S_t} p_k w_k."""

    answers = Up

    def numbers(self, ups: Ups[Up]) -> int:
        """DL-MH's equation 8 for one round: each client's parameters down and up."""
        return sum(2 * self.task.parameters(self.trains(client)) for client in ups.clients)
