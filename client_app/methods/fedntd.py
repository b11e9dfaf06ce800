"""FedNTD, client half: FedAvg's client, with distillation of the not-true classes from w."""

from typing import final

from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.bases.own_model import frozen_logits
from common.losses.distillation import not_true
from common.methods.fedntd import Options, Request
from common.models.classifier import Classifier
from common.training.fit import Loss


@final
class FedNTD(GlobalCopy[Options, Request]):
    """Client with the loss CE(z, y) + β τ² KL(σ_τ(z_g without y) ‖ σ_τ(z without y))."""

    def loss(self, request: Request, net: Classifier) -> Loss:
        tau = self.options.temperature
        received = frozen_logits(self.participant.model(self.spec, request.w).eval())

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, factor, goal = net(x), self.options.beta * tau**2, self.task.objective
            teacher, student = (goal.kept(outputs, y) for outputs in (received(x), z))
            distilled = not_true(teacher, student, goal.truth(y), tau)
            return self.participant.loss(z, y) + factor * distilled

        return loss
