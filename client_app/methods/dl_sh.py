"""DL-SH, client half: train, grow a confidence, speak once."""

from __future__ import annotations

from typing import final

from client_app.public_set import Teacher
from common import quantise
from common.methods.dl_sh import Down, Options, Up


@final
class DLSH(Teacher[Options, Down]):
    """Predictions and confidences, about all classes."""

    receives = Down

    @property
    def d(self) -> list[int]:
        return list(range(self.task.num_classes))

    def train(self, down: Down) -> Up:
        net, metrics = self.learn(down.t)
        low, high, theta = 0.0, 1.0, self.probabilities(net)
        if self.options.exchange == "logits":
            logits = self.logits(net)
            low, high = float(logits.min()), float(logits.max())
            theta = quantise.encode(logits, self.config.wire.dtype, low, high)
        w = self.confidence(down.t, net)
        return Up(metrics=metrics, theta=theta, low=low, high=high, w=w)
