"""DL-MH, client half: as DL-SH, about the client's own classes.

Contract: common/methods/dl_mh.py.
"""

from __future__ import annotations

from typing import final

from client_app.teacher import Teacher
from common.methods.dl_mh import Down, Up


@final
class DLMH(Teacher[Down]):
    receives = Down

    @property
    def d(self) -> list[int]:
        return [c for c, count in enumerate(self.participant.counts) if count]

    def train(self, down: Down) -> Up:
        p = self.participant
        net, metrics = self.learn(down.t)
        theta, w = self.probabilities(net), self.confidence(down.t, net)
        return Up(
            experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, theta=theta, w=w, d=self.d
        )
