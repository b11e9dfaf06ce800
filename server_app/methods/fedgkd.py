"""FedGKD, server half: FedAvg, and the mean of the last global models for a teacher.

Contract: common/methods/fedgkd.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.methods.fedgkd import Config, Down, Up
from common.records import Records, StateDict
from server_app.combine.averaging import average
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict
    buffer: list[StateDict]


@final
class FedGKD(GlobalModel[Up]):
    """w ← Σ_{k∈S_t} p_k w_k;  w̄ ← the mean of the last M of these."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.options: Config = self.config.method
        self.buffer: list[StateDict] = []  #: oldest first

    def down(self, t: int) -> Down:
        full = len(self.buffer) == self.options.buffer
        teaches = bool(self.buffer) and (full or not self.options.wait_full)
        teacher = tree.mean(self.buffer, [1] * len(self.buffer)) if teaches else None
        return Down(experiment=self.experiment, t=t, w=self.w, teacher=teacher)

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        sizes = [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, self.options, self.net)
        self.buffer = [*self.buffer, self.w][-self.options.buffer :]
        return mean_metrics(ups)

    def state(self) -> State:
        return State(w=self.w, buffer=self.buffer)

    def restore(self, state: State) -> None:
        self.w, self.buffer = state.w, state.buffer
