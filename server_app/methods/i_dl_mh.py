"""I-DL-MH, server half: DL-MH's server, then targets for the clients in a second exchange."""

from typing import final

import torch

from common.exchange.protocol import Request
from common.methods.i_dl_mh import Options, Reply
from common.techniques.ensemble import nearest_class
from common.techniques.incentive import IncentiveReply, IncentiveRequest
from server_app.distillation.public_set import OwnClasses
from server_app.method import Metrics, Replies

BYTE_CLASSES = 256
"""Largest number of classes for which a label is sent as one byte."""


@final
class IDLMH(OwnClasses[Options, Reply]):
    """DL-MH's server, which sends y_k = argmax_{j∈d} θ[k][j] or all of θ to clients that opt in."""

    second_reply_type, second_reply_name = IncentiveReply, "gain"

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        metrics = super().step(t, replies)
        self.theta = self.theta_of(self.options.reward)
        return metrics

    def second(self, t: int, replies: Replies[Reply]) -> dict[int, Request]:
        return {client.k: self._reward(reply) for client, reply in replies if reply.incentive}

    def _reward(self, reply: Reply) -> IncentiveRequest:
        """Return the labels of Algorithm 5, lines 9-36, or all of θ."""
        if self.options.incentive == "masked":
            dtype = torch.uint8 if len(reply.d) <= BYTE_CLASSES else torch.int16
            return IncentiveRequest(y=nearest_class(self.theta, reply.d).to(dtype), theta=None)
        return self.reward(self.theta)

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return equation 10 for uploads, plus a label per sample or all of θ (section 5.3)."""
        theta = 1 if self.options.incentive == "masked" else self.classes
        receivers = sum(reply.incentive for _, reply in replies)
        return super().numbers(replies) + self.samples * theta * receivers
