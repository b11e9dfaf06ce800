"""FedL2G, client half: train with guiding vectors, and send their gradient on the quiz set."""

from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from client_app.bases.own_model import OwnModel
from common import seeds
from common.methods.fedl2g import Options, TableReply, TableRequest
from common.models.classifier import Classifier
from common.training.fit import Loss, Precision, forward


@final
class FedL2G(OwnModel[Options, TableRequest]):
    """Client with the loss CE(f(x; θ), y) + λ mean (u(x; θ) − v_y)²."""

    @property
    def quiz(self) -> int:
        """Number of samples of the quiz set."""
        return self.options.quiz_batches * self.config.train.batch_size

    def admit(self) -> None:
        if self.participant.n < self.quiz + 2:  # BatchNorm cannot train on one sample
            raise ValueError(
                f"client {self.participant.k} has {self.participant.n} samples: its quiz set takes "
                f"{self.quiz}, fedl2g.quiz-batches times train.batch-size, and training at least 2"
            )

    def train(self, request: TableRequest) -> TableReply:
        assert request.rows is not None, "the server always has vectors"
        p, t = self.participant, request.t
        net, v = self.local(t).train(), request.rows.to(self.task.device)
        metrics = dict[str, float]()
        if t > self.options.warm_up:
            metrics = p.train(t, net.parameters(), self.loss(net, v), skip=self.quiz)
            self.keep(t, net)
        if self.options.whole_test:
            metrics = {**metrics, **p.whole_test(net)}
        rows, y = self._gradient(t, net, v)
        counts = torch.bincount(y, minlength=self.task.num_classes) > 0
        return TableReply(metrics=metrics, table=rows.float().cpu(), counts=counts.long().cpu())

    def loss(self, net: Classifier, v: Tensor) -> Loss:
        """Return L(θ, v) as a function of a batch."""
        o = self.options

        def loss(x: Tensor, y: Tensor) -> Tensor:
            features = net.features(x)
            logits: Tensor = net.head(features)
            outputs = logits if o.guide == "logits" else features
            return self.participant.loss(logits, y) + o.weight * F.mse_loss(outputs, v[y])

        return loss

    def _gradient(self, t: int, net: Classifier, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return g [C, m] and the labels of its batch; BatchNorm's statistics in ``net`` change."""
        p, task, (x, y) = self.participant, self.task, self.participant.train_set
        batches = task.batches(x[self.quiz :], y[self.quiz :], "meta", p.k, t)
        ((images, labels),) = batches.take(1)
        (quiz,) = task.in_order(x[: self.quiz], y[: self.quiz], size=self.quiz)
        with seeds.scope(task.seed, "meta", p.k, t):
            precision = task.config.run.precision
            g = meta_gradient(net, self.loss, v, (images, labels), quiz, task.lr(t), precision)
        return g, labels


def meta_gradient(
    net: Classifier,
    loss: Callable[[Classifier, Tensor], Loss],
    v: Tensor,
    batch: tuple[Tensor, Tensor],
    quiz: tuple[Tensor, Tensor],
    lr: float,
    precision: Precision = "fp32",
) -> Tensor:
    """Return ∂/∂v CE(f(θ'; x), y) on ``quiz``, θ' = θ − lr ∇_θ L(θ, v) on ``batch``.

    ``loss(net, v)`` is L as a function of a batch; v and the result are [C, m]. The parameters
    stay.
    """
    names, theta = zip(*net.named_parameters(), strict=True)
    v = v.clone().requires_grad_()
    x, y = quiz
    with forward(precision, x.device):
        before = loss(net, v)(*batch)
    slopes = torch.autograd.grad(before, theta, create_graph=True)
    moved = [(w - lr * g).detach().requires_grad_() for w, g in zip(theta, slopes, strict=True)]
    with forward(precision, x.device):
        after = F.cross_entropy(functional_call(net, dict(zip(names, moved, strict=True)), x), y)
    q = torch.autograd.grad(after, moved)
    (g,) = torch.autograd.grad(slopes, v, [-lr * one for one in q])
    return g
