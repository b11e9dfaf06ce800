"""FedKF, server half: the means over the active clients and over everybody's latest upload.

Contract: common/methods/fedkf.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from common import tree
from common.methods.fedkf import Config, Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.combine.averaging import average
from server_app.combine.uploads import Slots
from server_app.method import Method, Metrics, mean_metrics
from server_app.overall import overall
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict
    w_hat: StateDict
    slots: dict[int, StateDict]
    slot_rounds: dict[int, int]


@final
class FedKF(Method[Up]):
    """w ← Σ_{k∈S_t} (n_k/Σn) w_k (ACA);  ŵ ← the same over every client's last upload (OCA)."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.options: Config = self.config.method
        self.net = self.build(self.global_spec)
        self.w0 = self.w = self.w_hat = tree.snapshot(self.net)
        self.slots = Slots(Path(self.config.run.out), self.options.slots_in_memory)

    def down(self, t: int) -> Down:
        teaches = t > 1 and self.options.teacher == "oca"
        return Down(
            experiment=self.experiment, t=t, w=self.w, w_hat=self.w_hat if teaches else None
        )

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        sizes = [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, self.options, self.net)
        self.slots.put(t, [(client.k, up.w) for client, up in ups])
        self.w_hat = overall(self.slots, self.clients, self.w0, self.w_hat, self.options, self.net)
        return mean_metrics(ups)

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w_hat)
        return self.net

    @property
    def model_name(self) -> str:
        return "oca"

    def further_models(self) -> dict[str, StateDict]:
        return {"aca": self.w}

    def state(self) -> State:
        held, rounds = self.slots.held, self.slots.rounds
        return State(w=self.w, w_hat=self.w_hat, slots=held, slot_rounds=rounds)

    def restore(self, state: State) -> None:
        self.w, self.w_hat = state.w, state.w_hat
        self.slots.restore(state.slots, state.slot_rounds)
