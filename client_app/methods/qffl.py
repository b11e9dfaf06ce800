"""q-FFL, client half: FedAvg's, with the loss of the model received.

Contract: common/methods/qffl.py.
"""

from __future__ import annotations

from typing import final

import torch.nn.functional as F

from client_app.handler import Handler
from client_app.participant import upload
from common.methods.qffl import Down, Up
from common.scoring import evaluate


@final
class QFFL(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        return self.participant.global_spec

    def train(self, down: Down) -> Up:
        p = self.participant
        net = p.model(p.global_spec, down.w)
        before = evaluate(net, *p.train_set, p.dataset, p.config).loss
        net.train()
        metrics = p.train(down.t, net.parameters(), lambda x, y: F.cross_entropy(net(x), y))
        return Up(
            experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=upload(net), loss=before
        )
