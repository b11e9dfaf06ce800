"""FedProx, client half: FedAvg's, held near w (contract: common/methods/fedprox.py)."""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.architecture import trained
from client_app.handler import Handler
from client_app.participant import upload
from common.losses.proximal import proximal
from common.methods.fedprox import Down, Up


@final
class FedProx(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        return trained(self.participant)

    @property
    def shared_spec(self) -> str:
        return self.spec

    def train(self, down: Down) -> Up:
        p = self.participant
        mu: float = p.config.method.mu
        net = p.model(self.spec, down.w).train()
        named = list(net.named_parameters())
        reference = {name: value.detach().clone() for name, value in named}

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net(x), y) + mu * proximal(named, reference)

        metrics = p.train(down.t, net.parameters(), loss)
        return Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=upload(net))
