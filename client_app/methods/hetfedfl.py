"""Heterogeneous FedFL, client half: learn from data and from the server's frozen model.

Contract: common/methods/hetfedfl.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common.losses.distillation import kl
from common.methods import hetfedfl as contract
from common.models.batchnorm import batch_statistics
from common.models.classifier import Classifier
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client i keeps for good."""

    local: StateDict  #: w_i


@final
class HetFedFL(Handler[contract.Down]):
    receives = contract.Down

    def train(self, down: contract.Down) -> contract.Up:
        p = self.participant
        local, teacher = self._local(down.t).train(), p.model(p.global_spec, down.w).eval()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                taught = teacher(x)
            own = local(x)
            return F.cross_entropy(own, y) + kl(taught, own)

        by_batch = p.config.method.teacher_bn == "batch"
        with batch_statistics(teacher) if by_batch else nullcontext():
            metrics = p.train(down.t, local.parameters(), loss)
        w_i = upload(local)
        p.remember(down.t, Memory(local=w_i))
        return contract.Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, local=w_i)

    def _local(self, t: int) -> Classifier:
        memory = self.participant.recall(t, Memory)
        return self.participant.model(self.spec, memory.local if memory else None)

    def own_model(self, t: int) -> Classifier | None:
        return self._local(t + 1)
