"""FedKEMF, server half: the knowledge network learns what its copies say together."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common import tree
from common.losses.distillation import kl_from, opinion
from common.methods.fedkemf import Options, Up
from common.public_set import subset
from server_app.distil.public_set import Holding
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Ups


@final
class FedKEMF(Holding[Options, Up], GlobalModel[Options, Up]):
    """w ← w − η_s ∇ KL(mean_k σ(f(x; w_k) / T) ‖ σ(f(x; w) / T))."""

    answers = Up

    def check(self, client: Client, up: Up) -> None:
        tree.check_like(up.w, self.task.expected(self.global_spec), "w")

    def step(self, t: int, ups: Ups[Up]) -> Metrics:
        if not self.config.public.learn:
            return {}
        o = self.options
        copies = self.asked(t, ((self.global_spec, up.w) for _, up in ups))
        targets = opinion(copies, o.ensemble, 1.0 if o.labels else o.temperature)
        if self.labels is not None and o.labels:
            y = self.labels[subset(self.task, t, self.samples)]
            classes = F.one_hot(y, self.task.num_classes).to(targets.dtype)
            targets = torch.stack([classes, targets], dim=1)
        self.w, loss = self.taught(t, self.global_spec, self.w, targets, self.loss)
        return {"distill_loss": loss}

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Return the student's loss from logits [n, C] and p [n, C], or classes and p [n, 2, C]."""
        T = self.options.temperature
        if not self.options.labels:
            return kl_from(targets, z, T)
        y, p = targets.unbind(1)
        return 0.5 * F.cross_entropy(z, y) + 0.5 * T**2 * F.mse_loss(F.softmax(z / T, dim=1), p)
