"""FedGKD, server half: FedAvg's server; the mean of its last global models is the teacher."""

from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.fedgkd import Options, Reply, Request
from server_app.global_model import Averaged, Weights
from server_app.method import Metrics, Replies


@final
class State(Weights, kind="fedgkd.State"):
    buffer: list[StateDict]


@final
class FedGKD(Averaged[Options, Reply]):
    """Server with w ← Σ_{k∈S_t} p_k w_k; w̄ is the mean of the last M global models."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.buffer: list[StateDict] = []  #: oldest first

    def request(self, t: int) -> Request:
        full = len(self.buffer) == self.options.buffer
        teaches = bool(self.buffer) and (full or not self.options.wait_full)
        teacher = tree.mean(self.buffer, [1] * len(self.buffer)) if teaches else None
        return Request(w=self.w, teacher=teacher)

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        self.buffer = [*self.buffer, self.w][-self.options.buffer :]
        return {}
