"""FedProx, client half: FedAvg's, held near w.

FedFTG's clients are the same.
"""

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.copy import Copy
from common.fit import Loss
from common.losses.gradients import held_near
from common.methods.fedprox import Down, Options, Up
from common.models.classifier import Classifier


@final
class FedProx(Copy[Options, Down]):
    """CE(f(w_k; x), y) + μ/2 ‖w_k − w‖²."""

    receives, answers = Down, Up

    def loss(self, down: Down, net: Classifier) -> Loss:
        mu, proximal = self.options.mu, held_near(net)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x), y) + mu * proximal()

        return loss
