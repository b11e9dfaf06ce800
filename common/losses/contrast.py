"""Features that should be near one model's and far from another's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def contrast(q: Tensor, near: Tensor, far: Tensor, T: float) -> Tensor:
    """CE([cos(q, near), cos(q, far)] / T, 0), mean over the batch, in nats.

    ``q``, ``near``, ``far``: features [n, d] of the same images; T > 0. Li, He, Song 2021 (MOON),
    eq. 3.
    """
    cosines = torch.stack([F.cosine_similarity(q, other, dim=1) for other in (near, far)], dim=1)
    return F.cross_entropy(cosines / T, torch.zeros(len(q), dtype=torch.int64, device=q.device))
