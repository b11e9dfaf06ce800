"""DL-SH, client half: train, grow a confidence, speak once.

Contract: common/methods/dl_sh.py.
"""

from __future__ import annotations

from typing import final

from client_app.teacher import Teacher
from common import quantise
from common.methods.dl_sh import Config, Down, Up


@final
class DLSH(Teacher[Down]):
    receives = Down

    @property
    def d(self) -> list[int]:
        return list(range(self.participant.dataset.num_classes))

    def train(self, down: Down) -> Up:
        p = self.participant
        options: Config = p.config.method
        net, metrics = self.learn(down.t)
        low, high, theta = 0.0, 1.0, self.probabilities(net)
        if options.exchange == "logits":
            logits = self.logits(net)
            low, high = float(logits.min()), float(logits.max())
            theta = quantise.encode(logits, p.config.wire.dtype, low, high)
        w = self.confidence(down.t, net)
        return Up(
            experiment=p.experiment,
            t=down.t,
            k=p.k,
            metrics=metrics,
            theta=theta,
            low=low,
            high=high,
            w=w,
        )
