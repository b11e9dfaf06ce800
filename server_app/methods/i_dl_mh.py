"""I-DL-MH, server half: DL-MH's, then each client's share of what the server has learnt."""

from typing import final

import torch

from common.exchange.protocol import Request
from common.methods.i_dl_mh import Options, Reply
from common.techniques.ensemble import nearest_class
from common.techniques.incentive import IncentiveReply, IncentiveRequest
from server_app.distillation.public_set import OwnClasses
from server_app.method import Metrics, Replies

SMALL = 256
"""Up to so many classes a label travels as one byte."""


@final
class IDLMH(OwnClasses[Options, Reply]):
    """As DL-MH; then y_k = argmax_{j∈d} θ[k][j], or all of θ, to every client that wants it."""

    reply_type, second_reply_type = Reply, IncentiveReply

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        metrics = super().step(t, replies)
        ensemble = self.options.reward == "ensemble"
        self.theta = self.targets if ensemble else self.predicted(self.public)
        return metrics

    def second(self, t: int, replies: Replies[Reply]) -> dict[int, Request]:
        return {client.k: self._lesson(reply) for client, reply in replies if reply.incentive}

    def _lesson(self, reply: Reply) -> IncentiveRequest:
        """Algorithm 5, lines 9-36, or everything."""
        if self.options.incentive == "masked":
            dtype = torch.uint8 if len(reply.d) <= SMALL else torch.int16
            return IncentiveRequest(y=nearest_class(self.theta, reply.d).to(dtype), theta=None)
        return self.reward(self.theta)

    def numbers(self, replies: Replies[Reply]) -> int:
        """Equation 10 for what goes up; down a label of each sample, or all of θ (section 5.3)."""
        theta = 1 if self.options.incentive == "masked" else self.classes
        wanting = sum(reply.incentive for _, reply in replies)
        return super().numbers(replies) + self.samples * theta * wanting
