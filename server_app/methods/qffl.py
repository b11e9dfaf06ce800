"""q-FFL, server half: the clients with larger losses weigh more.

Contract: common/methods/qffl.py.
"""

from __future__ import annotations

from typing import final

from common import tree
from common.methods.qffl import Config, Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict
from server_app.census import Client
from server_app.method import Method, Metrics, mean_metrics

LEAST = 1e-10  #: added to every loss, so that F^(q−1) is finite


@final
class State(Records):
    w: StateDict


@final
class QFFL(Method[Up]):
    """w ← (r w + Σ_k F_k^q w_k) / (r + Σ_k F_k^q),  r = 1/η Σ_k q F_k^{q−1} ‖w − w_k‖²."""

    answers, keeps = Up, State

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.options: Config = self.config.method
        self.net = self.build(self.global_spec)
        self.w = tree.snapshot(self.net)

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")

    def step(self, t: int, ups: list[tuple[Client, Up]]) -> Metrics:
        q, parameters = self.options.q, tree.parameters_only(self.net)
        weights, r = [], 0.0
        for _, up in ups:
            f = up.loss + LEAST
            moved = sum(
                float((self.w[name].double() - up.w[name].double()).square().sum())
                for name in sorted(parameters)
            )
            weights.append(f**q)
            r += q * f ** (q - 1) * moved / self.config.train.lr
        mean = tree.mean([self.w, *(up.w for _, up in ups)], [r, *weights])
        kept = self.options.bn_buffers
        self.w = {n: mean[n] if kept or n in parameters else self.w[n] for n in mean}
        return {**mean_metrics(ups), "stay": r / (r + sum(weights))}

    def model(self) -> Classifier:
        self.net.load_state_dict(self.w)
        return self.net

    def state(self) -> State:
        return State(w=self.w)

    def restore(self, state: State) -> None:
        self.w = state.w
