"""FedNTD, client half: FedAvg's, taught by the received model about the other classes."""

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.copy import Copy
from client_app.private import answers
from common.fit import Loss
from common.losses.distillation import not_true
from common.methods.fedntd import Down, Options, Up
from common.models.classifier import Classifier


@final
class FedNTD(Copy[Options, Down]):
    """CE(z, y) + β τ² KL(σ_τ(z_g without y) ‖ σ_τ(z without y))."""

    receives, answers = Down, Up

    def loss(self, down: Down, net: Classifier) -> Loss:
        tau = self.options.temperature
        received = answers(self.participant.model(self.spec, down.w).eval())

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, factor = net(x), self.options.beta * tau**2
            return F.cross_entropy(z, y) + factor * not_true(received(x), z, y, tau)

        return loss
