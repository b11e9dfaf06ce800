"""FedAvg, client half: train the global model on local data.

Contract: common/methods/fedavg.py.
"""

from __future__ import annotations

from typing import final

import torch.nn.functional as F

from client_app.architecture import trained
from client_app.handler import Handler
from client_app.participant import upload
from common.methods.fedavg import Down, Up


@final
class FedAvg(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        return trained(self.participant)

    @property
    def shared_spec(self) -> str:
        return self.spec

    def train(self, down: Down) -> Up:
        p = self.participant
        net = p.model(self.spec, down.w).train()
        metrics = p.train(down.t, net.parameters(), lambda x, y: F.cross_entropy(net(x), y))
        return Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=upload(net))
