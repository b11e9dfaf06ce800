"""Heterogeneous FedFL, client half: train on local data and distil the frozen server model."""

from contextlib import nullcontext
from typing import final

from torch import Tensor

from client_app.bases.own_model import OwnModel, frozen_logits
from common.losses.distillation import kl
from common.methods.hetfedfl import Options, Reply, Request
from common.models.batchnorm import batch_statistics


@final
class HetFedFL(OwnModel[Options, Request]):
    """Client with the loss CE(C(x; w_i), y) + KL(S(x; w) → C(x; w_i))."""

    def train(self, request: Request) -> Reply:
        p = self.participant
        local, teacher = self.local(request.t).train(), p.model(p.global_spec, request.w).eval()
        targets = frozen_logits(teacher)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            target, logits = targets(x), local(x)
            return p.loss(logits, y) + kl(target, logits)

        by_batch = self.options.teacher_bn == "batch"
        with batch_statistics(teacher) if by_batch else nullcontext():
            metrics = p.train(request.t, local.parameters(), loss)
        return Reply(metrics=metrics, local=self.keep(request.t, local))
