"""LWN, server half: distil the largest opinion of the small networks.

Contract: common/methods/lwn.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.methods import lwn as contract
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.averaging import average
from server_app.census import Client
from server_app.method import Method, Metrics, mean_metrics
from server_app.noise_distillation import distil, largest


@final
class Memory(Records):
    """What round t + 1 depends on."""

    w: StateDict


@final
class LWN(Method[contract.Up]):
    """w ← w − η_s ∇ KL(max_i σ(S(z; s_i)) ‖ σ(S(z; w)))."""

    answers, keeps = contract.Up, Memory

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.options: contract.Config = self.config.method
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    def down(self, t: int) -> contract.Down:
        return contract.Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: contract.Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, contract.Up]]) -> Metrics:
        o = self.options
        if o.init == "average":
            sizes = [client.n for client, _ in ups]
            self.w = average([up.w for _, up in ups], sizes, self.w, o, self.net)
        small = [(self.global_spec, up.w) for _, up in ups]
        transfer = largest(o.max_ensemble_norm, o.kd_temperature)
        self.w, loss = distil(self, t, self.w, small, transfer)
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
