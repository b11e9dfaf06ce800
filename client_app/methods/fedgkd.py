"""FedGKD, client half: FedAvg's, taught by past global models."""

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.copy import Copy
from client_app.private import answers
from common.fit import Loss
from common.losses.distillation import kl
from common.methods.fedgkd import Down, Options, Up
from common.models.classifier import Classifier


@final
class FedGKD(Copy[Options, Down]):
    """CE(f(w_k; x), y) + γ/2 · s · KL(f(w̄; x)/T ‖ f(w_k; x)/T)."""

    receives, answers = Down, Up

    def loss(self, down: Down, net: Classifier) -> Loss:
        if down.teacher is None:
            return super().loss(down, net)
        o = self.options
        teacher = answers(self.participant.model(self.spec, down.teacher).eval())
        factor = o.gamma / 2 * (o.temperature**2 if o.t_squared else 1.0)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            value = F.cross_entropy(logits, y)
            return value + factor * kl(teacher(x), logits, o.temperature)

        return loss
