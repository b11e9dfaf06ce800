"""DL-SH, client half: train, grow a confidence, speak once."""

from typing import final

import torch

from client_app.incentive import Taught
from common.methods.dl_sh import Down, Options, Up
from common.models.classifier import Classifier
from common.predictions import spoken


@final
class DLSH(Taught[Options, Down]):
    """Predictions and confidences, about all classes."""

    receives, answers = Down, Up

    @property
    def d(self) -> list[int]:
        return list(range(self.task.num_classes))

    @property
    def full(self) -> bool:
        return True

    def said(self, net: Classifier) -> dict[str, object]:
        values, probabilities = self.logits(net), self.options.exchange == "probs"
        if probabilities:
            values = torch.softmax(values, dim=1)
        return spoken(values, self.config.wire.dtype, probabilities=probabilities)
