"""FedGKD, server half: FedAvg, and the mean of the last global models for a teacher."""

from typing import final

from common import tree
from common.methods.fedgkd import Down, Options, Up
from common.records import Records, StateDict
from server_app.global_model import Averaged
from server_app.method import Metrics, Ups


@final
class State(Records):
    w: StateDict
    buffer: list[StateDict]


@final
class FedGKD(Averaged[Options, Up]):
    """w ← Σ_{k∈S_t} p_k w_k;  w̄ ← the mean of the last M of these."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.buffer: list[StateDict] = []  #: oldest first

    def down(self, t: int) -> Down:
        full = len(self.buffer) == self.options.buffer
        teaches = bool(self.buffer) and (full or not self.options.wait_full)
        teacher = tree.mean(self.buffer, [1] * len(self.buffer)) if teaches else None
        return Down(w=self.w, teacher=teacher)

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        self.buffer = [*self.buffer, self.w][-self.options.buffer :]
        return {}
