"""FedGKD, client half: FedAvg's, taught by past global models.

Contract: common/methods/fedgkd.py.
"""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.handler import Handler
from client_app.participant import upload
from common.losses.distillation import kl
from common.methods.fedgkd import Config, Down, Up


@final
class FedGKD(Handler[Down]):
    receives = Down

    @property
    def spec(self) -> str:
        return self.participant.global_spec

    def train(self, down: Down) -> Up:
        p = self.participant
        c: Config = p.config.method
        net = p.model(p.global_spec, down.w).train()
        teacher = None if down.teacher is None else p.model(p.global_spec, down.teacher).eval()
        factor = c.gamma / 2 * (c.temperature**2 if c.t_squared else 1.0)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = net(x)
            value = F.cross_entropy(logits, y)
            if teacher is None:
                return value
            with torch.no_grad():
                target = teacher(x)
            return value + factor * kl(target, logits, c.temperature)

        metrics = p.train(down.t, net.parameters(), loss)
        return Up(experiment=p.experiment, t=down.t, k=p.k, metrics=metrics, w=upload(net))
