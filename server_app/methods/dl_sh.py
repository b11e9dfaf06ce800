"""DL-SH, server half: weight the clients' predictions by their confidences and distil them."""

from typing import final

import torch
from torch import Tensor

from common.exchange.protocol import Request
from common.methods.dl_sh import Options, Reply
from common.techniques.incentive import IncentiveReply
from server_app.aggregation.robust import probabilities
from server_app.distillation.public_set import PublicSet
from server_app.method import Client, Metrics, Replies


@final
class DLSH(PublicSet[Options, Reply]):
    """Server with Y_g = Σ_i W_i M_i and M_tgt ← M_tgt − η ∇ CE(Y_g, M_tgt(X_dist))."""

    second_reply_type, second_reply_name = IncentiveReply, "gain"

    def check(self, client: Client, reply: Reply) -> None:
        shape, dtype = (self.samples, self.classes), self.config.wire.dtype
        reply.check_predictions(shape, dtype, probabilities=self.options.exchange == "probs")
        self.check_confidence(reply.w)

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        metrics = super().step(t, replies)
        if self.options.incentive != "none":
            self.theta = self.theta_of(self.options.incentive)
        return metrics

    def second(self, t: int, replies: Replies[Reply]) -> dict[int, Request]:
        if self.options.incentive == "none":
            return {}
        return {client.k: self.reward(self.theta) for client in replies.clients}

    def targets_of(self, replies: Replies[Reply]) -> Tensor:
        if self.options.targets == "labels":
            if self.labels is None:
                raise ValueError('targets = "labels", but the public set has no known classes')
            return self.labels
        w = [reply.w for _, reply in replies]
        if self.options.exchange == "probs":
            mixed = self.ensemble([reply.said(probabilities=True) for _, reply in replies], w)
            return probabilities(mixed) if self.config.ensemble.aggregation == "median" else mixed
        logits = [reply.said(probabilities=False) for _, reply in replies]
        return torch.softmax(self.ensemble(logits, w), dim=1)

    def numbers(self, replies: Replies[Reply]) -> int:
        """Return DL-MH's equation 9: logits and confidences up; with an incentive also θ down."""
        w = self.config.confidence.kind != "uniform"
        theta = self.classes if self.options.incentive != "none" else 0
        return self.samples * (self.classes + w + theta) * len(replies)
