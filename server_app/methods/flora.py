"""FLoRA, server half: add the sum of the clients' products to the update."""

from typing import final

import torch

from common.methods.flora import Options, Reply
from common.models.adapters import W
from server_app.dense_update import DenseUpdate
from server_app.method import Metrics, Replies


@final
class FLoRA(DenseUpdate[Options]):
    """Server with ΔW ← ΔW + Σ_k p_k s_k B_k A_k."""

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        p, updates = self.shares(replies), {}
        for layer, factors in self.scaled(replies).items():
            before = self.w[f"{layer}.{W}"].flatten(1).double()
            sums = [
                share * (b.double() @ a.double()) for share, (a, b) in zip(p, factors, strict=True)
            ]
            updates[layer] = before + torch.stack(sums).sum(0)
        self.w = self.updated(updates, replies)
        return {}
