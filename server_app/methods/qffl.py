"""q-FFL, server half: the clients with larger losses weigh more.

Contract: common/methods/qffl.py.
"""

from __future__ import annotations

import math
from typing import final

from common import tree
from common.methods.qffl import Config, Down, Up
from server_app.global_model import GlobalModel
from server_app.method import Metrics, mean_metrics
from server_app.talk.census import Client

LEAST = 1e-10  #: added to every loss, so that F^(q−1) is finite
LARGEST = 100.0  #: of log₁₀ F^q, so that sums of F^q ‖w − w_k‖² are finite


@final
class QFFL(GlobalModel[Up]):
    """w ← (r w + Σ_k F_k^q w_k) / (r + Σ_k F_k^q),  r = 1/η Σ_k q F_k^{q−1} ‖w − w_k‖²."""

    answers = Up

    def prepare(self) -> None:
        super().prepare()
        self.options: Config = self.config.method

    def down(self, t: int) -> Down:
        return Down(experiment=self.experiment, t=t, w=self.w)

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.w, "w")
        if self.options.q * math.log10(up.loss + LEAST) > LARGEST:
            raise ValueError(f"loss = {up.loss:g} is too large for q = {self.options.q:g}")

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
