"""FedKF, server half: the mean over the active clients, and that over all latest uploads.

``server_app/aggregation/cached.py`` computes the latter, ŵ.
"""

from typing import final

from common.exchange import tree
from common.exchange.records import StateDict
from common.methods.fedkf import Options, Reply, Request
from common.techniques.datafree import DataFree, resumed_generator
from common.training import optimise
from server_app.global_model import Averaged, Weights
from server_app.method import Metrics, Replies


@final
class State(Weights, kind="fedkf.State"):
    """State after a round."""

    theta: StateDict | None  #: weights of the server's generator; None if none was trained
    adam: dict[int, StateDict]  #: Adam moments of the generator


@final
class FedKF(Averaged[Options, Reply]):
    """Server with w ← Σ_{k∈S_t} (n_k/Σn) w_k (ACA); ŵ: the same over all last uploads (OCA)."""

    state_type = State

    def prepare(self) -> None:
        super().prepare()
        self.theta: StateDict | None = None
        self.adam: dict[int, StateDict] = {}
        self.generator_metrics: Metrics = {}

    def request(self, t: int) -> Request:
        if t == 1:
            return Request(w=self.w, w_hat=None, theta=None)
        w_hat = self.merged(self.overall) if self.options.teacher == "oca" else None
        if self.options.generator_at == "server":
            self._train_generator(t, w_hat or self.w)
        return Request(w=self.w, w_hat=w_hat, theta=self.theta)

    def _train_generator(self, t: int, teacher: StateDict) -> None:
        """Train θ with Adam on L_G, from the outputs of ``teacher`` (equations 2-5)."""
        generator, optimizer = resumed_generator(self.task, t, self.theta, self.adam)
        datafree = DataFree(
            self.task,
            generator,
            self.build(self.global_spec, teacher),
            self.build(self.global_spec, self.w),
            optimizer,
            *("latents", t),
            gamma=self.options.gamma,
            size=self.config.train.batch_size,
        )
        steps = self.server_steps(self.options.generator_steps)
        for _ in datafree.batches([()] * steps):
            pass
        self.theta, self.adam = tree.snapshot(generator), optimise.moments(optimizer)
        self.generator_metrics = {"generator_loss": datafree.mean_loss}

    def after(self, t: int, replies: Replies[Reply]) -> Metrics:
        return self.generator_metrics
