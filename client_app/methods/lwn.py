"""LWN, client half: mutual learning of w_i and the small network."""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor

from client_app.private import Mutual
from common.losses.distillation import kl
from common.methods.lwn import Down, Options


@final
class LWN(Mutual[Options, Down]):
    """Both learn from the data and from each other; only the small network's copy goes back."""

    receives = Down

    def losses(self, own: Tensor, shared: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        l_c = F.cross_entropy(own, y) + kl(shared.detach(), own)
        l_s = F.cross_entropy(shared, y) + kl(own.detach(), shared)
        return l_c, l_s
