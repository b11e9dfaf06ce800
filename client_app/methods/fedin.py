"""FedIN, client half: local training and IN training."""

from __future__ import annotations

from functools import partial
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from common import seeds
from common.losses.gradients import Divergence, held_near, opposed
from common.methods.fedin import Options, Reply, Request
from common.models import split
from common.models.classifier import Classifier, Split
from common.training.fit import Loss, fit


@final
class FedIN(GlobalCopy[Options, Request]):
    """Client that takes steps along Z, a combination of the gradients of l_local and l_IN."""

    reply_type = Reply

    def admit(self) -> None:
        split.shapes(self.spec, self.task.shape, self.task.num_classes, stem=self.task.stem)

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        assert isinstance(net, Split)
        self.local = Local(net, self.options.mu, self.participant.loss)
        if request.s_in is None or request.s_out is None:
            return self.participant.train(request.t, net.parameters(), self.local)
        device = self.task.device
        in_training = INTraining(net, request.s_in.to(device), request.s_out.to(device))
        together = self.options.grad_mode in ("eq14", "eq13")
        train = self._together if together else self._apart
        return {**train(request.t, in_training), "in_loss": in_training.mean_loss}

    def more(self, request: Request) -> dict[str, object]:
        """Return (s_in, s_out), float32: clipped per sample, with noise added."""
        if not self.options.in_training:
            return {"s_in": None, "s_out": None}
        assert self.local.kept is not None, "training has processed a batch"
        noise = seeds.stream(self.task.seed, "feature-noise", self.participant.k, request.t)
        s_in, s_out = (s.float().cpu().contiguous() for s in self.local.kept)
        o = self.options
        return {"s_in": bounded(s_in, o, noise), "s_out": bounded(s_out, o, noise)}

    def _together(self, t: int, in_training: INTraining) -> dict[str, float]:
        """Take one step along Z for each batch (equation 14 or 13)."""
        o, local, divergence = self.options, self.local, Divergence(self.options.compare)
        inner, outer = split.inner_and_outer(local.net)

        def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            losses = local(x, y), in_training()
            divergence.compare(*losses, inner)
            return losses

        if o.grad_mode == "eq13":
            loss = opposed(both, inner, outer, o.outer_scale)
            return self.participant.train(t, local.net.parameters(), loss) | divergence.metrics

        factor = o.lambda_local / 2
        scale = o.outer_scale / factor if factor else 1.0
        # l_IN has no gradients for extractor and classifier, so hooks can rescale them
        scaled = outer if scale != 1 else []
        hooks = [w.register_hook(lambda gradient: scale * gradient) for w in scaled]

        def weighted(x: Tensor, y: Tensor) -> Tensor:
            l_local, l_in = both(x, y)
            return factor * l_local + l_in

        metrics = self.participant.train(t, local.net.parameters(), weighted)
        for hook in hooks:
            hook.remove()
        return metrics | divergence.metrics

    def _apart(self, t: int, in_training: INTraining) -> dict[str, float]:
        """Take steps of l_IN on w_in with an optimiser of their own.

        ``sequential``: one after each step of l_local; ``phases``: as many after all of them.
        """
        net, clip, precision = self.local.net, self.config.train.clip, self.config.run.precision
        optimizer = self.task.optimizer(t, split.inner_and_outer(net)[0])

        def steps(count: int) -> None:
            batches = [(in_training.s_in,)] * count
            with torch.enable_grad():
                fit(optimizer, batches, lambda _: in_training(), clip=clip, precision=precision)

        after = partial(steps, 1) if self.options.grad_mode == "sequential" else None
        metrics = self.participant.train(t, net.parameters(), self.local, after=after)
        if after is None:
            steps(int(metrics["steps"]))
        return metrics


@final
class Local:
    """The loss l_local (equation 4); ``kept``: features of the last of the largest batches."""

    def __init__(self, net: Split, mu: float, of_labels: Loss = F.cross_entropy) -> None:
        self.net, self.mu, self.proximal, self.of_labels = net, mu, held_near(net), of_labels
        self.kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        s_in = self.net.extractor(x)
        s_out = self.net.intermediate(s_in)
        if self.kept is None or len(s_in) >= len(self.kept[0]):
            self.kept = s_in.detach(), s_out.detach()
        return self.of_labels(self.net.classifier(s_out), y) + self.mu * self.proximal()


@final
class INTraining:
    """The loss l_IN (equation 8) on the round's batch S."""

    def __init__(self, net: Split, s_in: Tensor, s_out: Tensor) -> None:
        self.net, self.s_in, self.s_out = net, s_in, s_out
        self.total, self.count = torch.zeros((), dtype=torch.float64, device=s_in.device), 0

    def __call__(self) -> Tensor:
        loss = F.mse_loss(self.net.intermediate(self.s_in), self.s_out)
        self.total, self.count = self.total + loss.detach().double(), self.count + 1
        return loss

    @property
    def mean_loss(self) -> float:
        return float(self.total) / self.count


def bounded(s: Tensor, o: Options, generator: torch.Generator) -> Tensor:
    """Return features [n, c, ...] clipped to norm ``clip``, with noise of deviation ``noise``."""
    if o.clip:
        norms = s.flatten(1).norm(dim=1).clamp(min=o.clip)
        s = s * (o.clip / norms).view(-1, *[1] * (s.dim() - 1))
    if o.noise:
        s = s + o.noise * torch.randn(s.shape, generator=generator)
    return s
