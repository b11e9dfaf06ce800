"""How far a student's output is from a teacher's."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def kl(teacher: Tensor, student: Tensor, T: float = 1.0) -> Tensor:
    """KL(softmax(teacher/T) ‖ softmax(student/T)), mean over the batch, without the factor T².

    ``teacher``, ``student``: logits [n, C]; T > 0. Hinton et al. 2015; FedORION eq. 1-3.
    """
    return F.kl_div(
        F.log_softmax(student / T, dim=1),
        F.log_softmax(teacher / T, dim=1),
        reduction="batchmean",
        log_target=True,
    )


def soft_cross_entropy(teacher: Tensor, student: Tensor, T: float = 1.0) -> Tensor:
    """−Σ_c softmax(teacher/T)_c log softmax(student/T)_c, mean over the batch.

    Logits [n, C]. Larger than ``kl`` by the teacher's entropy; the same gradient for the student.
    """
    return -(F.softmax(teacher / T, dim=1) * F.log_softmax(student / T, dim=1)).sum(1).mean()


KD_LOSSES = {"kl": kl, "ce": soft_cross_entropy}
