"""DL-SH, client half: train, grow a confidence, speak once."""

from __future__ import annotations

from typing import final

import torch

from client_app.public_set import Teacher
from common.methods.dl_sh import Down, Options, Up
from common.predictions import spoken


@final
class DLSH(Teacher[Options, Down]):
    """Predictions and confidences, about all classes."""

    receives = Down

    @property
    def d(self) -> list[int]:
        return list(range(self.task.num_classes))

    def train(self, down: Down) -> Up:
        net, metrics = self.learn(down.t)
        probabilities = self.options.exchange == "probs"
        values = self.logits(net)
        if probabilities:
            values = torch.softmax(values, dim=1)
        theta = spoken(values, self.config.wire.dtype, probabilities=probabilities)
        return Up(metrics=metrics, w=self.confidence(down.t, net), **theta)
