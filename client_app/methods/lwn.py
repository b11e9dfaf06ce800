"""LWN, client half: mutual learning of w_i and the small network.

Contract: common/methods/lwn.py.
"""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common.losses.distillation import kl
from common.methods import lwn as contract
from common.models.classifier import Classifier
from common.records import Records, StateDict


@final
class Memory(Records):
    """What client i keeps for good."""

    local: StateDict  #: w_i


@final
class LWN(Handler[contract.Down]):
    receives = contract.Down

    def train(self, down: contract.Down) -> contract.Up:
        p = self.participant
        local, small = self._local(down.t).train(), p.model(p.global_spec, down.w).train()

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own, theirs = local(x), small(x)
            l_c = F.cross_entropy(own, y) + kl(theirs.detach(), own)
            l_s = F.cross_entropy(theirs, y) + kl(own.detach(), theirs)
            return l_c + l_s

        # The teachers are detached, so one backward of the sum is one of each loss.
        metrics = p.train(down.t, [*local.parameters(), *small.parameters()], loss)
        p.remember(down.t, Memory(local=upload(local)))
        return contract.Up(
            experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=upload(small)
        )

    def _local(self, t: int) -> Classifier:
        memory = self.participant.recall(t, Memory)
        return self.participant.model(self.spec, memory.local if memory else None)

    def own_model(self, t: int) -> Classifier | None:
        return self._local(t + 1)
