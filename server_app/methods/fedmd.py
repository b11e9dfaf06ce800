"""FedMD, server half: the mean of what the clients say."""

from typing import final

import torch

from common.methods.fedmd import Options, Up
from common.protocol import Down
from server_app.distil.agreement import Agreement
from server_app.method import Ups


@final
class FedMD(Agreement[Options]):
    """ẑ = 1/|S_t| Σ_k z_k, the same for all."""

    def second(self, t: int, ups: Ups[Up]) -> dict[int, Down]:
        uniform = torch.full((len(ups),), 1 / len(ups))
        consensus = self.answer(self.said(ups), uniform)
        return {client.k: consensus for client in ups.clients}
