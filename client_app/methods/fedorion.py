"""FedORION, client half: deep mutual learning of θ_i and the copy θ_gi.

Contract: common/methods/fedorion.py.
"""

from __future__ import annotations

import math
from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common import seeds
from common.losses.distillation import KD_LOSSES
from common.methods.fedorion import Config, Down, Up
from common.models.classifier import Classifier
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client i keeps for good."""

    local: StateDict  #: θ_i


@final
class FedORION(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        p = self.participant
        return p.global_spec if self._is_spared else p.spec

    def train(self, down: Down) -> Up:
        p = self.participant
        copy = p.model(p.global_spec, down.w).train()
        if self._skips_dml:
            metrics = p.train(down.t, copy.parameters(), lambda x, y: F.cross_entropy(copy(x), y))
            w = upload(copy)
            p.remember(down.t, Memory(local=w))
            return Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=w, local=None)

        local = self._local(down.t).train()
        metrics = self._mutual(down.t, local, copy)
        theta = upload(local)
        p.remember(down.t, Memory(local=theta))
        return Up(
            experiment=p.experiment,
            t=down.t,
            k=p.k,
            metrics=metrics,
            w=upload(copy),
            local=theta,
        )

    def _mutual(self, t: int, local: Classifier, copy: Classifier) -> dict[str, float]:
        """Equations 1 and 2, both from the outputs before either step."""
        c: Config = self.participant.config.method
        kd = KD_LOSSES[c.kd_loss]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z_i, z_gi = local(x), copy(x)
            l_cm = F.cross_entropy(z_i, y)
            l_gm = kd(z_i.detach(), z_gi, c.kd_temperature)
            if c.dml:
                l_cm = l_cm + kd(z_gi.detach(), z_i, c.kd_temperature)
                l_gm = l_gm + F.cross_entropy(z_gi, y)
            return l_cm + l_gm

        # The teachers are detached, so one backward of the sum is one of each loss.
        return self.participant.train(t, [*local.parameters(), *copy.parameters()], loss)

    @property
    def _skips_dml(self) -> bool:
        p = self.participant
        if p.config.method.skip_share >= 0:
            return self._is_spared
        return bool(p.config.method.selective) and p.spec == p.global_spec

    @property
    def _is_spared(self) -> bool:
        """Whether this client is of the share that skips DML (Figure 3)."""
        p = self.participant
        size = math.floor(p.config.method.skip_share * p.clients + 0.5)
        if size <= 0:
            return False
        order = seeds.rng(p.config.run.seed, "skip-dml").permutation(p.clients)
        return p.k in order[:size]

    def _local(self, t: int) -> Classifier:
        memory = self.participant.recall(t, Memory)
        return self.participant.model(self.spec, memory.local if memory else None)

    def own_model(self, t: int) -> Classifier | None:
        return self._local(t + 1)
