"""FedAvg and FedProx, server half (contracts: common/methods/fedavg.py, fedprox.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from common import communication, models, tree
from common.methods.fedavg import Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.combine.across import Architectures
from server_app.combine.averaging import average
from server_app.combine.uploads import Slots
from server_app.method import Method, Metrics, mean_metrics
from server_app.overall import overall
from server_app.talk.census import Client


@final
class State(Records):
    w: StateDict = {}
    models: dict[str, StateDict] = {}  #: by architecture, under across
    w_hat: StateDict | None = None  #: ŵ, under ``inactive``
    slots: dict[int, StateDict] = {}
    slot_rounds: dict[int, int] = {}


@final
class FedAvg(Method[Up]):
    """w ← Σ_{k∈S_t} p_k w_k, and under ``inactive`` ŵ ← the same over every latest upload."""

    answers, keeps = Up, State

    def prepare(self) -> None:
        super().prepare()
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)
        self.w_hat = self.w
        across: Any = getattr(self.config.method, "across", "none")
        self.held = None if across == "none" else Architectures(self, across)
        self.slots: Slots | None = None
        if getattr(self.config.method, "inactive", False):
            self.w0 = self.w
            self.slots = Slots(Path(self.config.run.out), self.config.method.slots_in_memory)

    def begin(self, clients: Sequence[Client]) -> None:
        super().begin(clients)
        if self.held is not None:
            self.held.begin(clients)

    def down(self, t: int) -> Down | Callable[[Client], Down]:
        if (held := self.held) is not None:
            return lambda client: Down(
                experiment=self.experiment, t=t, w=held.weights(client.model)
            )
        return Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: Up) -> None:
        if self.held is not None:
            self.held.check(client, up.w)
        else:
            tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        if self.held is not None:
            self.held.step([(client, up.w) for client, up in ups], self.config.method)
            return mean_metrics(ups)
        o, sizes = self.config.method, [client.n for client, _ in ups]
        self.w = average([up.w for _, up in ups], sizes, self.w, o, self.net)
        if self.slots is not None:
            self.slots.put(t, [(client.k, up.w) for client, up in ups])
            self.w_hat = overall(self.slots, self.clients, self.w0, self.w_hat, o, self.net)
        return mean_metrics(ups)

    def numbers(self, ups: list[tuple[Client, Up]]) -> int:
        """DL-MH's equation 8 for one round: each client's parameters down and up."""
        counted = 0
        for client, _ in ups:
            spec = self.global_spec if self.held is None else client.model
            shape, classes = self.dataset.shape, self.dataset.num_classes
            P = models.parameters(spec, shape, classes, stem=self.config.run.stem)
            counted += communication.fedavg(P, P, 1)
        return counted

    def networks(self) -> dict[str, Classifier]:
        return {} if self.held is None else self.held.networks()

    def ask(self) -> StateDict | None:
        return super().ask() if self.held is None else self.held.state_dict()

    def model(self) -> Classifier:
        if self.held is not None:
            return list(self.held.networks().values())[-1]
        self.net.load_state_dict(self.w if self.slots is None else self.w_hat)
        return self.net

    @property
    def model_name(self) -> str:
        return "global" if self.slots is None else "oca"

    def further_models(self) -> dict[str, StateDict]:
        return {} if self.slots is None else {"aca": self.w}

    def state(self) -> State:
        if self.held is not None:
            return State(models=self.held.models)
        if self.slots is None:
            return State(w=self.w)
        held, rounds = self.slots.held, self.slots.rounds
        return State(w=self.w, w_hat=self.w_hat, slots=held, slot_rounds=rounds)

    def restore(self, state: State) -> None:
        if self.held is not None:
            self.held.models = dict(state.models)
            return
        self.w = state.w
        if self.slots is not None and state.w_hat is not None:
            self.w_hat = state.w_hat
            self.slots.restore(state.slots, state.slot_rounds)
