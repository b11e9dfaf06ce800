"""DL-SH, client half: train, grow a confidence, speak once."""

from __future__ import annotations

from typing import final

import torch

from client_app.incentive import Taught
from common import protocol
from common.incentive import Gain
from common.methods.dl_sh import Down, Options, Up
from common.predictions import spoken


@final
class DLSH(Taught[Options, Down]):
    """Predictions and confidences, about all classes."""

    receives = Down

    @property
    def d(self) -> list[int]:
        return list(range(self.task.num_classes))

    @property
    def full(self) -> bool:
        return True

    @property
    def lessons(self) -> int:
        return self.options.incentive_epochs

    def second(self, down: protocol.Down) -> Gain:
        if self.options.incentive == "none":
            raise ValueError('dl-sh.incentive = "none" has no second exchange in a round')
        return super().second(down)

    def train(self, down: Down) -> Up:
        net, metrics = self.learn(down.t)
        probabilities = self.options.exchange == "probs"
        values = self.logits(net)
        if probabilities:
            values = torch.softmax(values, dim=1)
        theta = spoken(values, self.config.wire.dtype, probabilities=probabilities)
        return Up(metrics=metrics, w=self.confidence(down.t, net), **theta)
