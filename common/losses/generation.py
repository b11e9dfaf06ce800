"""Losses of generators that are trained without data.

Losses on the outputs of a teacher: DAFL (Chen et al., "Data-free learning of student networks",
2019, section 3.2) and FedKF (section IV-C). Losses for images on which teachers and student differ:
FedFTG (Zhang et al. 2022, "Fine-tuning Global Model via Data-Free Knowledge Distillation for
Non-IID Federated Learning", section 3, with the released code's distances). Losses for images of
given labels on which an ensemble and its student differ: DENSE (Zhang et al. 2022) and Co-Boosting
(Dai et al. 2024).
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from common.losses.distillation import kl_divergence


def one_hot(logits: Tensor) -> Tensor:
    """Return L_OH = CE(p̂, argmax p̂), mean over the batch; small for confident predictions.

    ``logits``: the teacher's [n, C]. FedKF eq. 2.
    """
    return F.cross_entropy(logits, logits.detach().argmax(1))


def information_entropy(logits: Tensor, *, normalised: bool) -> Tensor:
    """Return L_IE = −H(mean_n p̂) in nats; small if the batch covers all classes.

    ``logits``: the teacher's [n, C], C ≥ 2. FedKF eq. 3. ``normalised``: 1 − H / log C, in [0, 1],
    0 where the classes are balanced (the released code).
    """
    mean = F.softmax(logits, dim=1).mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum()
    return 1 - entropy / math.log(logits.shape[1]) if normalised else -entropy


def activation(features: Tensor, reduction: Literal["mean", "sum"]) -> Tensor:
    """Return L_A = −‖f̂‖₁; small for large activations, which real images cause in the teacher.

    ``features``: the teacher's [n, a]. ``sum``: the norm of each row, mean over the batch (FedKF
    eq. 4); ``mean``: the mean of |f̂| over batch and entries (the released code).
    """
    sizes = features.abs()
    return -(sizes.mean() if reduction == "mean" else sizes.sum(1).mean())


def disagreement(teacher: Tensor, student: Tensor) -> Tensor:
    """Return mean_c |teacher_jc − student_jc| of each sample j, [n], for logits [n, C].

    The released code's form of the model discrepancy loss L_md: the generator maximises its
    weighted mean.
    """
    return (teacher - student).abs().mean(1)


def diversity(z: Tensor, x: Tensor) -> Tensor:
    """Return L_dis = exp(−1/n² Σ_ij d(x_i, x_j) · d(z_i, z_j)), in (0, 1]; 1 if all x_i are equal.

    d is the mean squared difference for latents ``z`` [n, d], and the mean absolute difference for
    images or features ``x`` [n, ...] (released codes of FedGen and FedFTG).
    """
    rows = x.flatten(1)
    outputs = (rows[:, None] - rows[None]).abs().mean(2)
    latents = (z[:, None] - z[None]).square().mean(2)
    return (-(outputs * latents).mean()).exp()


def hard_cross_entropy(logits: Tensor, y: Tensor, exponent: float) -> Tensor:
    """Return the mean of (1 − p_y)^exponent · CE(logits, y), with the factor as a constant.

    ``logits``: the ensemble's [n, C]; p_y: its probability of the label; labels y [n];
    exponent ≥ 0, 0: plain cross-entropy. Co-Boosting generates hard samples with it.
    """
    losses = F.cross_entropy(logits, y, reduction="none")
    hardness = 1 - torch.exp(-losses.detach())
    return (hardness.clamp_min(0).pow(exponent) * losses).mean()


def divergence(teacher: Tensor, student: Tensor, T: float, *, everywhere: bool) -> Tensor:
    """Return the mean of T² KL(σ(teacher/T) ‖ σ(student/T)), 0 for samples with equal predictions.

    Logits [n, C]; T > 0. ``everywhere``: all samples count. The generators of DENSE and Co-Boosting
    maximise it.
    """
    losses = kl_divergence(teacher, student, T).sum(1)
    counted = losses if everywhere else losses * (teacher.argmax(1) != student.argmax(1))
    return T**2 * counted.mean()
