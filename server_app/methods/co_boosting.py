"""Co-Boosting, server half: generate hard samples and learn the ensemble's weights on them."""

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import progress
from common.losses import generation
from common.methods.co_boosting import Options, Reply
from common.models.classifier import Classifier
from common.models.ensemble import Ensemble, weighted
from common.training.fit import forward
from server_app.distillation.one_shot import OneShot, Pool
from server_app.method import Metrics, Replies

ODS_TEMPERATURE = 4.0  #: temperature of the ensemble in ``perturbed``
STEP_DECAY = 0.99  #: factor of μ for each epoch


@final
class CoBoosting(OneShot[Options]):
    """DENSE with the changes

    (1 − p)^hs CE,  w ← clip(w − μ sign ∂CE(z̄, y)/∂w)  and  x ← x + ε sign ∇_x Σ_c u_c σ(z̄(x)/4)_c.
    """

    def step(self, t: int, replies: Replies[Reply]) -> Metrics:
        metrics = super().step(t, replies)
        w = self.ensemble.weights
        return {**metrics, "least_weight": float(w.min()), "largest_weight": float(w.max())}

    def ensembles(self, nets: Sequence[Classifier]) -> dict[str, nn.Module]:
        if not self.t:
            return {}
        return {"weighted-ensemble": self.ensemble, "ensemble": Ensemble(self.ensemble.nets)}

    def generator_loss(
        self, teacher: Tensor, y: Tensor, student: Tensor, distances: Sequence[Tensor]
    ) -> Tensor:
        mean = [distance / len(self.ensemble) for distance in distances]
        return super().generator_loss(teacher, y, student, mean)

    def one_hot(self, logits: Tensor, y: Tensor) -> Tensor:
        return generation.hard_cross_entropy(logits, y, self.options.hs)

    def improve(self, e: int, pool: Pool) -> None:
        step = self.options.mu * STEP_DECAY**e
        if e and step:
            how = self.options.weights_augment(self.config.data.name)
            batches = pool.batches(how, self.stream("weights"))
            for x, y in progress.steps(batches, "weight step"):
                with torch.no_grad(), forward(self.config.run.precision, x.device):
                    logits = self.ensemble.each(x)
                self.ensemble.weights = reweighed(self.ensemble.weights, logits.float(), y, step)

    def harder(self, x: Tensor) -> Tensor:
        if not self.options.epsilon:
            return x
        shape = len(x), self.task.num_classes
        u = torch.rand(shape, generator=self.stream("directions")).mul_(2).sub_(1)
        return perturbed(self.ensemble, x, u.to(x.device), self.options.epsilon)


def reweighed(w: Tensor, logits: Tensor, y: Tensor, step: float) -> Tensor:
    """Return clip[0, 1](w − step · sign ∂CE(z̄, y)/∂w) [K], or w if all entries would be 0.

    w [K], ``logits`` of the networks [K, n, C], labels y [n].
    """
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(weighted(logits, w), y), w)
    moved = (w.detach() - step * gradient.sign()).clamp(0, 1)
    return torch.where(moved.any(), moved, w.detach())


def perturbed(net: nn.Module, x: Tensor, u: Tensor, epsilon: float) -> Tensor:
    """Return x + ε sign ∇_x Σ_c u_c softmax(net(x)/4)_c for images x [n, C, H, W].

    u: directions [n, classes]. Tashiro et al. 2020, "Diversity can be Transferred" (output
    diversified sampling), on probabilities at temperature 4.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = (u * torch.softmax(net(x) / ODS_TEMPERATURE, dim=1)).sum()
        (gradient,) = torch.autograd.grad(value, x)
    return x.detach() + epsilon * gradient.sign()
