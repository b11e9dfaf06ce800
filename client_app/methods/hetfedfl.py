"""Heterogeneous FedFL, client half: learn from data and from the server's frozen model."""

from contextlib import nullcontext
from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.private import Private, answers
from common.losses.distillation import kl
from common.methods.hetfedfl import Down, Options, Up
from common.models.batchnorm import batch_statistics


@final
class HetFedFL(Private[Options, Down]):
    """CE(C(x; w_i), y) + KL(S(x; w) → C(x; w_i))."""

    receives = Down

    def train(self, down: Down) -> Up:
        p = self.participant
        local, teacher = self.local(down.t).train(), p.model(p.global_spec, down.w).eval()
        taught = answers(teacher)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            target, own = taught(x), local(x)
            return F.cross_entropy(own, y) + kl(target, own)

        by_batch = self.options.teacher_bn == "batch"
        with batch_statistics(teacher) if by_batch else nullcontext():
            metrics = p.train(down.t, local.parameters(), loss)
        return Up(metrics=metrics, local=self.keep(down.t, local))
