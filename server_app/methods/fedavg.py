"""FedAvg and FedProx, server half."""

from typing import final

from common.methods.fedavg import Averaging, Reply
from server_app.global_model import Averaged
from server_app.method import Replies


@final
class FedAvg(Averaged[Averaging, Reply]):
    """Server with w ← Σ_{k∈S_t} p_k w_k."""

    reply_type = Reply

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return DL-MH's equation 8 for one round: each client's parameters down and up."""
        return sum(2 * self.task.parameters(self.trains(client)) for client in replies.clients)
