"""FedAvg and FedProx, server half (contracts: common/methods/fedavg.py, fedprox.py)."""

from __future__ import annotations

from pathlib import Path
from typing import final

from common import tree
from common.methods.fedavg import Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.averaging import average
from server_app.census import Client
from server_app.method import Method, Metrics, mean_metrics
from server_app.overall import overall
from server_app.slots import Slots


@final
class State(Records):
    w: StateDict
    w_hat: StateDict | None = None  #: ŵ
    slots: dict[int, StateDict] = {}
    slot_rounds: dict[int, int] = {}


@final
class FedAvg(Method[Up]):
    """w ← Σ_{k∈S_t} p_k w_k, and under ``inactive`` ŵ ← the same over every latest upload."""

    Up, State = Up, State

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)
        self.w_hat = self.w
        self.slots: Slots | None = None
        if getattr(self.config.method, "inactive", False):
            self.w0 = self.w
            self.slots = Slots(Path(self.config.run.out), self.config.method.slots_in_memory)

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        o, sizes = self.config.method, [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, o, self.net)
        if self.slots is not None:
            self.slots.put(t, [(client.k, up.w) for client, up in ups])
            self.w_hat = overall(self.slots, self.clients, self.w0, self.w_hat, o, self.net)
        return mean_metrics(ups)

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w if self.slots is None else self.w_hat)
        return self.net

    @property
    def model_name(self) -> str:
        return "global" if self.slots is None else "oca"

    def further_models(self) -> dict[str, StateDict]:
        return {} if self.slots is None else {"aca": self.w}

    def state(self) -> State:
        if self.slots is None:
            return State(w=self.w)
        held, rounds = self.slots.held, self.slots.rounds
        return State(w=self.w, w_hat=self.w_hat, slots=held, slot_rounds=rounds)

    def restore(self, state: State) -> None:
        self.w = state.w
        if self.slots is not None and state.w_hat is not None:
            self.w_hat = state.w_hat
            self.slots.restore(state.slots, state.slot_rounds)
