"""FedAvg and FedProx, server half (contracts: common/methods/fedavg.py, fedprox.py)."""

from __future__ import annotations

from typing import final

from common import tree
from common.methods.fedavg import Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.averaging import average
from server_app.census import Client
from server_app.method import Method, Metrics, mean_metrics


@final
class State(Records):
    w: StateDict


@final
class FedAvg(Method[Up]):
    """w ← Σ_{k∈S_t} p_k w_k."""

    Up, State = Up, State

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        sizes = [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, self.config.method, self.net)
        return mean_metrics(ups)

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w)
        return self.net

    def state(self) -> State:
        return State(w=self.w)

    def restore(self, state: State) -> None:
        self.w = state.w
