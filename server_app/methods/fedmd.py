"""FedMD, server half: the mean of the clients' predictions."""

from typing import final

import torch

from common.exchange.protocol import Request
from common.methods.fedmd import Options, Reply
from server_app.distillation.agreement import Agreement
from server_app.method import Replies


@final
class FedMD(Agreement[Options]):
    """Server that sends ẑ = 1/|S_t| Σ_k z_k to all clients of the round.

    With ``public.robust``, ẑ is a robust mean of the z_k.
    """

    def second(self, t: int, replies: Replies[Reply]) -> dict[int, Request]:
        predictions = self.predictions(replies)
        if self.robust:
            mixed = self.robust_mean(predictions)
            p = self.options.probabilities
            consensus = self.targets(self.normalised(mixed) if p else mixed)
        else:
            uniform = torch.full((len(replies),), 1 / len(replies))
            consensus = self.consensus(predictions, uniform)
        return {client.k: consensus for client in replies.clients}
