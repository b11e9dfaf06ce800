"""What a generator is trained on where there are no data: the answers of a teacher.

DAFL (Chen et al., "Data-free learning of student networks", 2019, section 3.2) and FedKF (section
IV-C).
"""

from __future__ import annotations

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor


def one_hot(logits: Tensor) -> Tensor:
    """L_OH = CE(p̂, argmax p̂), mean over the batch: be sure of one class.

    ``logits``: the teacher's [n, C]. FedKF eq. 2.
    """
    return F.cross_entropy(logits, logits.detach().argmax(1))


def information_entropy(logits: Tensor, *, normalised: bool) -> Tensor:
    """L_IE = −H(mean_n p̂) in nats: cover all classes.

    ``logits``: the teacher's [n, C], C ≥ 2. FedKF eq. 3. ``normalised``: 1 − H / log C, in [0, 1],
    0 where the classes are balanced (the released code).
    """
    mean = F.softmax(logits, dim=1).mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum()
    return 1 - entropy / math.log(logits.shape[1]) if normalised else -entropy


def activation(features: Tensor, reduction: Literal["mean", "sum"]) -> Tensor:
    """L_A = −‖f̂‖₁: excite the teacher as real images do.

    ``features``: the teacher's [n, a]. ``sum``: the norm of each row, mean over the batch (FedKF
    eq. 4); ``mean``: the mean of |f̂| over batch and entries (the released code).
    """
    sizes = features.abs()
    return -(sizes.mean() if reduction == "mean" else sizes.sum(1).mean())
