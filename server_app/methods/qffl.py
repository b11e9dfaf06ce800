"""q-FFL, server half: the clients with larger losses weigh more."""

import math
from typing import final

from common import tree
from common.methods.qffl import Options, Up
from common.records import StateDict
from server_app.global_model import Averaged
from server_app.method import Client, Metrics, Ups

LEAST = 1e-10  #: added to every loss, so that F^(q−1) is finite
LARGEST = 100.0  #: of log₁₀ F^q, so that sums of F^q ‖w − w_k‖² are finite


@final
class QFFL(Averaged[Options, Up]):
    """w ← (r w + Σ_k F_k^q w_k) / (r + Σ_k F_k^q),  r = 1/η Σ_k q F_k^{q−1} ‖w − w_k‖²."""

    answers = Up

    def check(self, client: Client, up: Up) -> None:
        super().check(client, up)
        if self.options.q * math.log10(up.loss + LEAST) > LARGEST:
            raise ValueError(f"loss = {up.loss:g} is too large for q = {self.options.q:g}")

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        self.lr = self.task.lr(t)  #: η
        return super().step(t, ups)

    def combine(self, ups: Ups[Up], previous: StateDict) -> StateDict:
        q, parameters = self.options.q, self.parameter_names
        weights, r = [], 0.0
        for _, up in ups:
            f = up.loss + LEAST
            moved = sum(
                float((previous[name].double() - up.w[name].double()).square().sum())
                for name in sorted(parameters)
            )
            weights.append(f**q)
            r += q * f ** (q - 1) * moved / self.lr
        self.stay = r / (r + sum(weights))
        mean = tree.mean([previous, *(up.w for _, up in ups)], [r, *weights])
        kept = self.config.average.bn_buffers
        return {n: mean[n] if kept or n in parameters else previous[n] for n in mean}

    def after(self, t: int, ups: Ups[Up]) -> Metrics:
        return {"stay": self.stay}
