"""DL-SH, client half: train, compute confidences, send predictions for the public set."""

from typing import final

import torch

from client_app.bases.incentive import RewardedClient
from common.exchange.predictions import encoded
from common.methods.dl_sh import Options, Reply, Request
from common.models.classifier import Classifier


@final
class DLSH(RewardedClient[Options, Request]):
    """Client that sends predictions for all classes, and confidences."""

    reply_type = Reply

    @property
    def d(self) -> list[int]:
        return list(range(self.task.num_classes))

    @property
    def full(self) -> bool:
        return True

    def prediction_fields(self, net: Classifier) -> dict[str, object]:
        values, probabilities = self.logits(net), self.options.exchange == "probs"
        if probabilities:
            values = torch.softmax(values, dim=1)
        return encoded(values, self.config.wire.dtype, probabilities=probabilities)
