"""FedGKD, client half: FedAvg's client, with distillation from the mean of past global models."""

from typing import final

from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.bases.own_model import frozen_logits
from common.losses.distillation import kl
from common.methods.fedgkd import Options, Request
from common.models.classifier import Classifier
from common.training.fit import Loss


@final
class FedGKD(GlobalCopy[Options, Request]):
    """Client with the loss CE(f(w_k; x), y) + γ/2 · s · KL(f(w̄; x)/T ‖ f(w_k; x)/T)."""

    def loss(self, request: Request, net: Classifier) -> Loss:
        if request.teacher is None:
            return super().loss(request, net)
        o = self.options
        teacher = frozen_logits(self.participant.model(self.spec, request.teacher).eval())
        factor = o.gamma / 2 * (o.temperature**2 if o.t_squared else 1.0)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits, goal = net(x), self.task.objective
            target, student = (goal.kept(outputs, y) for outputs in (teacher(x), logits))
            return self.participant.loss(logits, y) + factor * kl(target, student, o.temperature)

        return loss
