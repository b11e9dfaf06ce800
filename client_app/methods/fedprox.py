"""FedProx, client half: FedAvg's client with a proximal term. FedFTG uses the same client."""

from typing import final

from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from common.losses.gradients import held_near
from common.methods.fedprox import Options, Request
from common.models.classifier import Classifier
from common.training.fit import Loss


@final
class FedProx(GlobalCopy[Options, Request]):
    """Client with the loss CE(f(w_k; x), y) + μ/2 ‖w_k − w‖²."""

    def loss(self, request: Request, net: Classifier) -> Loss:
        plain = super().loss(request, net)
        mu, proximal = self.options.mu, held_near(net)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return plain(x, y) + mu * proximal()

        return loss
