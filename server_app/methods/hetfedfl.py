"""Heterogeneous FedFL, server half: distil the clients' own models on noise, average nothing.

Contract: common/methods/hetfedfl.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.losses.distillation import kl
from common.methods import hetfedfl as contract
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.census import Client
from server_app.method import Method, Metrics, mean_metrics
from server_app.noise_distillation import distil, largest, weighted


@final
class Memory(Records):
    """What round t + 1 depends on."""

    w: StateDict


@final
class HetFedFL(Method[contract.Up]):
    """w ← w − η_s ∇ 1/K Σ_i KL(C(z; w_i) → S(z; w)), or from the clients' max-ensemble."""

    answers, keeps = contract.Up, Memory

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.options: contract.Config = self.config.method
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    def down(self, t: int) -> contract.Down:
        return contract.Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: contract.Up) -> None:
        tree.check_like(up.local, self.expected(client.model), f"local ({client.model})")

    def step(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        o = self.options
        if o.transfer == "ensemble":
            transfer = largest(o.max_ensemble_norm, o.kd_temperature)
        else:
            transfer = weighted(kl, [1 / len(ups)] * len(ups), o.kd_temperature)
        locals_ = [(client.model, up.local) for client, up in ups]
        self.w, loss = distil(self, t, self.w, locals_, transfer)
        return {**mean_metrics(ups), "distill_loss": loss}

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w)
        return self.net

    @property
    def eval_bn(self) -> str:
        return self.options.eval_bn

    def state(self) -> Memory:
        return Memory(w=self.w)

    def restore(self, state: Memory) -> None:
        self.w = state.w
