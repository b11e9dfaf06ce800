"""FedKEMF, client half: mutual learning of θ_k and the knowledge network, joint or alternating."""

import itertools
from collections.abc import Iterable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.own_model import Mutual
from common.losses.distillation import kl
from common.methods.fedkemf import Options, Request
from common.models.classifier import Classifier


@final
class FedKEMF(Mutual[Options, Request]):
    """Client with the loss CE + D for both networks; it sends the knowledge network's copy."""

    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        distance = F.mse_loss if self.options.dml == "mse" else kl
        l_own = self.participant.loss(own, y) + distance(shared.detach(), own)
        l_shared = self.participant.loss(shared, y) + distance(own.detach(), shared)
        return l_own, l_shared

    def learn_mutually(self, t: int, local: Classifier, copy: Classifier) -> dict[str, float]:
        if self.options.order == "joint":
            return super().learn_mutually(t, local, copy)

        turns = itertools.cycle((0, 1))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            turn = next(turns)
            with torch.set_grad_enabled(turn == 0):
                own = local(x)
            with torch.set_grad_enabled(turn == 1):
                shared = copy(x)
            return self.losses(own, shared, y)[turn]

        def twice(batches: Iterable[tuple[Tensor, ...]]) -> Iterable[tuple[Tensor, ...]]:
            return (batch for batch in batches for _ in range(2))

        # The other network has no gradients, so the optimiser does not change it.
        both = [*local.parameters(), *copy.parameters()]
        metrics = self.participant.train(t, both, loss, twice)
        return {"loss": 2 * metrics["loss"], "steps": metrics["steps"] / 2}
