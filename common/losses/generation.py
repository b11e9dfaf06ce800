"""Losses of generators that are trained without data.

Outputs of a teacher: DAFL (Chen et al., "Data-free learning of student networks", 2019, section
3.2) and FedKF (section IV-C). Images on which teachers and student differ: FedFTG (Zhang et
al. 2022, "Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID Federated
Learning", section 3, with the released code's distances). Images of given labels on which an
ensemble and its student differ: DENSE (Zhang et al. 2022) and Co-Boosting (Dai et al. 2024).
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


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


def disagreement(teacher: Tensor, student: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weights_j · mean_c |teacher_jc − student_jc| / n on logits [n, C]; weights [n].

    The released code's form of the model discrepancy loss L_md: the generator maximises it.
    """
    return (weights * (teacher - student).abs().mean(1)).mean()


def weighted_cross_entropy(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weights_j · CE(logits_j, y_j) / n: logits [n, C], labels [n], weights [n] (L_cls)."""
    return (weights * F.cross_entropy(logits, y, reduction="none")).mean()


def weighted_soft_cross_entropy(teacher: Tensor, student: Tensor, weights: Tensor) -> Tensor:
    """−Σ_j weights_j Σ_c softmax(teacher)_jc log softmax(student)_jc / n; logits [n, C]."""
    per_sample = -(F.softmax(teacher, dim=1) * F.log_softmax(student, dim=1)).sum(1)
    return (weights * per_sample).mean()


def diversity(z: Tensor, x: Tensor) -> Tensor:
    """exp(−1/n² Σ_ij d(x_i, x_j) · d(z_i, z_j)), in (0, 1]: 1 if all outputs are one (L_dis).

    ``z``: latents [n, d], their distance the mean square; ``x``: images or features [n, ...],
    theirs the mean absolute difference (FedGen and FedFTG, the released codes).
    """
    flat = x.flatten(1)
    outputs = (flat[:, None] - flat[None]).abs().mean(2)
    latents = (z[:, None] - z[None]).square().mean(2)
    return (-(outputs * latents).mean()).exp()


def hard_cross_entropy(logits: Tensor, y: Tensor, exponent: float) -> Tensor:
    """Mean of (1 − p_y)^exponent · CE(logits, y), the factor taken as a constant.

    ``logits``: the ensemble's [n, C], whose probability of the label is p_y; labels y [n];
    exponent ≥ 0, 0: plain cross-entropy. Co-Boosting's generation of hard samples.
    """
    each = F.cross_entropy(logits, y, reduction="none")
    hardness = 1 - torch.exp(-each.detach())
    return (hardness.clamp_min(0).pow(exponent) * each).mean()


def divergence(teacher: Tensor, student: Tensor, T: float, *, everywhere: bool) -> Tensor:
    """Mean over the batch of T² KL(σ(teacher/T) ‖ σ(student/T)), 0 where both name one class.

    Logits [n, C]; T > 0. ``everywhere``: no sample is left out. The generators of DENSE and of
    Co-Boosting maximise it.
    """
    log_p, log_q = F.log_softmax(teacher / T, dim=1), F.log_softmax(student / T, dim=1)
    each = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
    counted = each if everywhere else each * (teacher.argmax(1) != student.argmax(1))
    return T**2 * counted.mean()
