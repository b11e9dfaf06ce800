"""FML, client half: mutual learning of the own model θ_k and a copy of the meme."""

from typing import final

import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import ParamsT

from client_app.bases.own_model import Mutual
from common.losses.distillation import kl
from common.methods.fml import Options, Request
from common.models.classifier import Classifier


@final
class FML(Mutual[Options, Request]):
    """Client with the losses α CE + (1 − α) KL of θ_k and β CE + (1 − β) KL of the meme's copy."""

    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        o = self.options
        # Cross-entropy and both KL terms use one logarithm of the softmax for each network.
        log_own, log_shared = F.log_softmax(own, dim=1), F.log_softmax(shared, dim=1)

        def mixed(student: Tensor, teacher: Tensor, weight: float) -> Tensor:
            target = teacher.detach() if o.detach else teacher
            divergence = kl(target, student, given="logs", reduction=o.kl)
            return weight * F.nll_loss(student, y) + (1 - weight) * divergence

        return mixed(log_own, log_shared, o.alpha), mixed(log_shared, log_own, o.beta)

    def groups(self, local: Classifier, copy: Classifier) -> ParamsT:
        return [{"params": list(net.parameters())} for net in (local, copy)]
