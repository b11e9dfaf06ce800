"""FML, client half: mutual learning of the own model θ_k and a copy of the meme."""

from typing import final

from torch import Tensor
from torch.optim.optimizer import ParamsT

from client_app.bases.own_model import Mutual
from common.methods.fml import Options, Request
from common.models.classifier import Classifier


@final
class FML(Mutual[Options, Request]):
    """Client with the losses α L + (1 − α) D of θ_k and β L + (1 − β) D of the meme's copy.

    L is the loss of the labels, D the divergence from the other network's outputs, as the objective
    says: cross-entropy and KL of classes.
    """

    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        o = self.options
        goal, weights = self.task.objective, self.participant.class_weights
        # Of classes, cross-entropy and both KL terms use one log-softmax for each network.
        own, shared = (goal.form(goal.kept(outputs, y)) for outputs in (own, shared))

        def mixed(student: Tensor, teacher: Tensor, weight: float) -> Tensor:
            target = teacher.detach() if o.detach else teacher
            divergence = goal.divergence(target, student, o.kl)
            return weight * goal.loss_of(student, y, weights) + (1 - weight) * divergence

        return mixed(own, shared, o.alpha), mixed(shared, own, o.beta)

    def groups(self, local: Classifier, copy: Classifier) -> ParamsT:
        return [{"params": list(net.parameters())} for net in (local, copy)]
