"""q-FFL, server half: average with larger weights for clients with larger losses."""

import math
from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.qffl import Options, Reply
from server_app.global_model import Averaged
from server_app.method import Client, Metrics, Replies

EPSILON = 1e-10  #: added to every loss, so that F^(q−1) is finite
LARGEST = 100.0  #: upper limit of log₁₀ F^q, so that sums of F^q ‖w − w_k‖² are finite


@final
class QFFL(Averaged[Options, Reply]):
    """Server with w ← (r w + Σ_k F_k^q w_k) / (r + Σ_k F_k^q).

    r = 1/η Σ_k q F_k^{q−1} ‖w − w_k‖².
    """

    def check(self, client: Client, reply: Reply) -> None:
        super().check(client, reply)
        if self.options.q * math.log10(reply.loss + EPSILON) > LARGEST:
            raise ValueError(f"loss = {reply.loss:g} is too large for q = {self.options.q:g}")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        self.lr = self.task.lr(t)  #: η
        return super().step(t, replies)

    def combine(self, replies: Replies[Reply], previous: StateDict) -> StateDict:
        q, parameters = self.options.q, self.parameter_names
        weights, r = [], 0.0
        for client, reply in replies:
            f, s = reply.loss + EPSILON, self.discounts.get(client.k, 1.0)
            moved = sum(
                float((previous[name].double() - reply.w[name].double()).square().sum())
                for name in sorted(parameters)
            )
            weights.append(f**q)
            r += q * f ** (q - 1) * moved / s**2 / self.lr  # of the client's whole change
        self.stay = r / (r + sum(weights))
        mean = tree.mean([previous, *(reply.w for _, reply in replies)], [r, *weights])
        kept = self.config.average.bn_buffers
        return {n: mean[n] if kept or n in parameters else previous[n] for n in mean}

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        return {"stay": self.stay}
