"""FedKEMF, server half: distil the ensemble of the copies into the knowledge network."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from common.exchange import tree
from common.losses.distillation import kl_from
from common.methods.fedkemf import Options, Reply
from common.techniques.public_set import subset
from server_app.distillation.public_set import ServerPublicSet
from server_app.global_model import GlobalModel
from server_app.method import Client, Metrics, Replies


@final
class FedKEMF(ServerPublicSet[Options, Reply], GlobalModel[Options, Reply]):
    """Server with w ← w − η_s ∇ KL(mean_k σ(f(x; w_k) / T) ‖ σ(f(x; w) / T))."""

    def check(self, client: Client, reply: Reply) -> None:
        tree.check_like(reply.w, self.task.expected(self.global_spec), "w")

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        if not self.config.public.learn:
            return {}
        o = self.options
        copies = self.logits_of(t, ((self.global_spec, reply.w) for _, reply in replies))
        targets = self.opinion(copies, o.ensemble, 1.0 if o.labels else o.temperature)
        if self.labels is not None and o.labels:
            y = self.labels[subset(self.task, t, self.samples)]
            classes = F.one_hot(y, self.task.num_classes).to(targets.dtype)
            targets = torch.stack([classes, targets], dim=1)
        self.w, loss = self.train_student(t, self.global_spec, self.w, targets, self.loss)
        return {"distill_loss": loss}

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Return the student's loss from logits [n, C] and p [n, C], or classes and p [n, 2, C]."""
        T = self.options.temperature
        if not self.options.labels:
            return kl_from(targets, z, T)
        y, p = targets.unbind(1)
        return 0.5 * F.cross_entropy(z, y) + 0.5 * T**2 * F.mse_loss(F.softmax(z / T, dim=1), p)
