"""FedIN, client half: local training and IN training."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.bases.global_copy import GlobalCopy
from client_app.participant import upload
from common import seeds
from common.losses.gradients import Divergence, held_near, opposed
from common.methods.fedin import Options, Reply, Request
from common.models import split
from common.models.classifier import Classifier, Split
from common.training.fit import fit


@final
class FedIN(GlobalCopy[Options, Request]):
    """Client that takes steps along Z, a combination of the gradients of l_local and l_IN."""

    request_type, reply_type = Request, Reply

    def admit(self) -> None:
        split.shapes(self.spec, self.task.shape, self.task.num_classes, stem=self.task.stem)

    def train(self, request: Request) -> Reply:
        net = self.participant.model(self.spec, request.w).train()
        assert isinstance(net, Split)
        self.local = Local(net, self.options.mu)
        metrics = self.learn(request, net)
        s_in, s_out = self._features(request.t) if self.options.in_training else (None, None)
        return Reply(metrics=metrics, w=upload(net), s_in=s_in, s_out=s_out)

    def learn(self, request: Request, net: Classifier) -> dict[str, float]:
        if request.s_in is None or request.s_out is None:
            return self.participant.train(request.t, net.parameters(), self.local)
        device = self.task.device
        in_training = INTraining(self.local.net, request.s_in.to(device), request.s_out.to(device))
        modes = {"sequential": self._sequential, "phases": self._phases}
        train = modes.get(self.options.grad_mode, self._together)
        return {**train(request.t, in_training), "in_loss": in_training.mean_loss}

    def _features(self, t: int) -> tuple[Tensor, Tensor]:
        """Return (s_in, s_out) for the reply, float32: clipped per sample, with noise added."""
        assert self.local.kept is not None, "training has processed a batch"
        o, k = self.options, self.participant.k
        generator = seeds.stream(self.task.seed, "feature-noise", k, t)
        s_in, s_out = (s.float().cpu().contiguous() for s in self.local.kept)
        return bounded(s_in, o, generator), bounded(s_out, o, generator)

    def _together(self, t: int, in_training: INTraining) -> dict[str, float]:
        """Take one step along Z for each batch (equation 14 or 13)."""
        o, local, divergence = self.options, self.local, Divergence(self.options.compare)
        inner, outer = split.parts(local.net)
        parameters = list(local.net.parameters())

        def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            losses = local(x, y), in_training()
            divergence.compare(*losses, inner)
            return losses

        if o.grad_mode == "eq13":
            loss = opposed(both, inner, outer, o.outer_scale)
            return self.participant.train(t, parameters, loss) | divergence.metrics

        factor = o.lambda_local / 2
        if factor == 0 or o.outer_scale == factor:
            hooks = []
        else:  # l_IN has no gradients for extractor and classifier, so hooks can rescale them
            scale = o.outer_scale / factor
            hooks = [w.register_hook(lambda gradient: scale * gradient) for w in outer]

        def weighted(x: Tensor, y: Tensor) -> Tensor:
            l_local, l_in = both(x, y)
            return factor * l_local + l_in

        metrics = self.participant.train(t, parameters, weighted)
        for hook in hooks:
            hook.remove()
        return metrics | divergence.metrics

    def _sequential(self, t: int, in_training: INTraining) -> dict[str, float]:
        """Take a step of l_IN on w_in after each step of l_local, with a separate optimiser."""
        optimizer = self.task.optimizer(t, split.parts(self.local.net)[0])
        parameters = self.local.net.parameters()
        return self.participant.train(
            t, parameters, self.local, after=lambda: self._in_steps(optimizer, in_training, 1)
        )

    def _phases(self, t: int, in_training: INTraining) -> dict[str, float]:
        """Take all steps of l_local, then as many steps of l_IN on w_in."""
        metrics = self.participant.train(t, self.local.net.parameters(), self.local)
        optimizer = self.task.optimizer(t, split.parts(self.local.net)[0])
        self._in_steps(optimizer, in_training, int(metrics["steps"]))
        return metrics

    def _in_steps(
        self, optimizer: torch.optim.Optimizer, in_training: INTraining, count: int
    ) -> None:
        clip, precision = self.config.train.clip, self.config.run.precision
        with torch.enable_grad():
            batches = [(in_training.s_in,)] * count
            fit(optimizer, batches, lambda _: in_training(), clip=clip, precision=precision)


@final
class Local:
    """The loss l_local (equation 4); ``kept``: features of the last of the largest batches."""

    def __init__(self, net: Split, mu: float) -> None:
        self.net, self.mu, self.proximal = net, mu, held_near(net)
        self.kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        s_in = self.net.extractor(x)
        s_out = self.net.intermediate(s_in)
        if self.kept is None or len(s_in) >= len(self.kept[0]):
            self.kept = s_in.detach(), s_out.detach()
        return F.cross_entropy(self.net.classifier(s_out), y) + self.mu * self.proximal()


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
