"""Distillation losses between a student and a teacher, and targets from several teachers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Given = Literal["logits", "logs", "shares"]
Reduction = Literal["batchmean", "mean"]


def kl_divergence(
    teacher: Tensor, student: Tensor, T: float = 1.0, given: Given = "logits"
) -> Tensor:
    """Return the terms p log(p / q) of KL(p ‖ q) by sample and class, [n, C], without factor T².

    ``logits``: p is softmax(teacher/T), q softmax(student/T); T > 0 (Hinton et al. 2015; FedORION
    eq. 1-3). ``logs``: ``teacher`` is log p and ``student`` log q. ``shares``: ``teacher`` is p,
    non-negative, of any sum. The gradient for the student's logits is then (Σ_c p_c · q − p) / T.
    """
    log_q = student if given == "logs" else F.log_softmax(student / T, dim=1)
    if given == "shares":
        return F.kl_div(log_q, teacher, reduction="none")
    log_p = teacher if given == "logs" else F.log_softmax(teacher / T, dim=1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True)


def kl(
    teacher: Tensor,
    student: Tensor,
    T: float = 1.0,
    given: Given = "logits",
    reduction: Reduction = "batchmean",
) -> Tensor:
    """Return KL(p ‖ q), mean over the batch; for the arguments see ``kl_divergence``.

    ``reduction``: ``batchmean``; ``mean`` also divides by C, as ``torch.nn.KLDivLoss()`` does.
    """
    value = kl_divergence(teacher, student, T, given).sum() / len(student)
    return value / student.shape[1] if reduction == "mean" else value


def soft_cross_entropy(teacher: Tensor, student: Tensor, T: float = 1.0) -> Tensor:
    """Return −Σ_c softmax(teacher/T)_c log softmax(student/T)_c of each sample, [n].

    Logits [n, C]. The mean over the batch equals ``kl`` plus the teacher's entropy, which does not
    depend on the student.
    """
    return -(F.softmax(teacher / T, dim=1) * F.log_softmax(student / T, dim=1)).sum(1)


def kl_from(targets: Tensor, student: Tensor, T: float = 1.0) -> Tensor:
    """Return ``kl`` of ``targets`` [n, C], shares of any sum, from the student's logits [n, C]."""
    return kl(targets, student, T, "shares")


def mean_soft_cross_entropy(teacher: Tensor, student: Tensor, T: float = 1.0) -> Tensor:
    """Return the mean of ``soft_cross_entropy`` over the batch."""
    return soft_cross_entropy(teacher, student, T).mean()


KD_LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "kl": kl,
    "ce": mean_soft_cross_entropy,
}


def not_true(teacher: Tensor, student: Tensor, y: Tensor, T: float = 1.0) -> Tensor:
    """Return ``kl`` over all classes except the label, mean over the batch, without factor T².

    ``teacher``, ``student``: logits [n, C], C ≥ 2; ``y``: labels [n]. Lee et al. 2022 (FedNTD),
    eq. 3: both softmaxes omit entry y, so the loss does not depend on the logit of the label.
    """
    others = torch.arange(student.shape[1] - 1, device=y.device)
    others = others + (others >= y[:, None])  # [n, C - 1]; a mask would wait for the device
    return kl(teacher.gather(1, others), student.gather(1, others), T)


def max_ensemble(teachers: Sequence[Tensor], norm: str, T: float = 1.0) -> Tensor:
    """Return max_i softmax(teacher_i / T), element by element: logits [n, C] to targets [n, C].

    The maximum of distributions sums to more than 1. ``norm = "sum"`` divides by the sum,
    ``"softmax"`` takes a softmax of it, ``"none"`` leaves it as printed ("Cost Effective Federated
    Learning for Heterogeneous Systems", ensemble distillation loss).
    """
    largest = torch.stack([F.softmax(y / T, dim=1) for y in teachers]).amax(0)
    if norm == "sum":
        return largest / largest.sum(1, keepdim=True)
    if norm == "softmax":
        return F.softmax(largest, dim=1)
    assert norm == "none", norm
    return largest


def opinion(
    logits: Iterable[Tensor], how: Literal["logits", "mean", "max", "vote"], T: float = 1.0
) -> Tensor:
    """Return one distribution for each image, [n, C], from logits z_i [n, C] of several teachers.

    ``logits``: softmax(mean_i z_i / T); ``mean``: mean_i softmax(z_i / T); ``max``: as
    ``max_ensemble`` with norm "sum"; ``vote``: the share of the teachers that predict the class.
    ``logits`` has at least one element; it is read once, with one element in memory at a time.

    ``kl_from`` with the ``mean`` is the mean of ``kl`` over the teachers, minus a term that does
    not depend on the student.
    """
    total, count = torch.zeros(()), 0
    for z in logits:
        if how == "logits":
            output = z
        elif how == "vote":
            output = F.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)
        else:
            output = F.softmax(z / T, dim=1)
        total = torch.maximum(total, output) if how == "max" else total + output
        count += 1
    assert count, "at least one teacher is required"
    if how == "logits":
        return F.softmax(total / count / T, dim=1)
    return total / total.sum(1, keepdim=True)
