"""FedORION, client half: deep mutual learning of θ_i and the copy θ_gi."""

import math
from typing import final

from torch import Tensor

from client_app.bases.own_model import Mutual
from client_app.participant import upload
from common import seeds
from common.losses.distillation import KD_LOSSES
from common.methods.fedorion import Options, Reply, Request


@final
class FedORION(Mutual[Options, Request]):
    """Client with mutual learning of θ_i and θ_gi; one that skips DML trains θ_gi alone."""

    @property
    def spec(self) -> str:
        p = self.participant
        return p.global_spec if self._is_in_skip_share else p.spec

    def train(self, request: Request) -> Reply:
        p = self.participant
        copy = p.model(p.global_spec, request.w).train()
        if self._skips_dml:
            metrics = p.train(request.t, copy.parameters(), p.supervised(copy))
            return Reply(metrics=metrics, w=self.keep(request.t, copy), local=None)
        local = self.local(request.t).train()
        metrics = self.learn_mutually(request.t, local, copy)
        return Reply(metrics=metrics, w=upload(copy), local=self.keep(request.t, local))

    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of equations 1 and 2."""
        kd, T = KD_LOSSES[self.options.kd_loss], self.config.noise.temperature
        l_cm = self.participant.loss(own, y) + kd(shared.detach(), own, T)
        l_gm = kd(own.detach(), shared, T)
        return l_cm, l_gm + self.participant.loss(shared, y) if self.options.dml else l_gm

    @property
    def _skips_dml(self) -> bool:
        if self.options.skip_share >= 0:
            return self._is_in_skip_share
        return self.options.selective and self.participant.spec == self.participant.global_spec

    @property
    def _is_in_skip_share(self) -> bool:
        """Whether this client belongs to the share that skips DML (Figure 3)."""
        p = self.participant
        size = math.floor(self.options.skip_share * p.clients + 0.5)
        if size <= 0:
            return False
        order = seeds.rng(self.task.seed, "skip-dml").permutation(p.clients)
        return p.k in order[:size]
