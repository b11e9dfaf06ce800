"""What FedFTG's generator is trained on: images that teachers know and the student does not.

Zhang et al. 2022, "Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID
Federated Learning", section 3, with the released code's distances.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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
    """exp(−1/n² Σ_ij d(x_i, x_j) · d(z_i, z_j)), in (0, 1]: 1 if all images are one (L_dis).

    ``z``: latents [n, d], their distance the mean square; ``x``: images [n, ...], theirs the mean
    absolute difference.
    """
    flat = x.flatten(1)
    images = (flat[:, None] - flat[None]).abs().mean(2)
    latents = (z[:, None] - z[None]).square().mean(2)
    return (-(images * latents).mean()).exp()
