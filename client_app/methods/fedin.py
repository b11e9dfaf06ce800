"""FedIN, client half: local training and IN training at once.

Contract: common/methods/fedin.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.handler import Handler
from client_app.participant import Participant, upload
from common import optimise, seeds, split
from common.fit import fit
from common.losses.features import alleviated, with_gradient
from common.losses.proximal import proximal
from common.methods import fedin as contract
from common.models.classifier import Split


@final
class FedIN(Handler[contract.Down]):
    receives = contract.Down

    @property
    def spec(self) -> str:
        return self.participant.spec

    @property
    def shared_spec(self) -> str:
        return self.participant.spec

    def admit(self) -> None:
        data, run = self.participant.dataset, self.participant.config.run
        split.shapes(self.spec, data.shape, data.num_classes, stem=run.stem)

    def train(self, down: contract.Down) -> contract.Up:
        p, o = self.participant, self.participant.config.method
        net = p.model(self.spec, down.w).train()
        assert isinstance(net, Split)
        local = Local(net, o.mu)
        if down.s_in is None or down.s_out is None:
            metrics = p.train(down.t, net.parameters(), local)
        else:
            in_training = INTraining(net, down.s_in.to(p.device), down.s_out.to(p.device))
            learn = sequential if o.grad_mode == "sequential" else together
            metrics = learn(p, down.t, local, in_training)
            metrics["in_loss"] = in_training.mean_loss
        s_in, s_out = local.features(p, down.t, o) if o.in_training else (None, None)
        return contract.Up(
            experiment=p.experiment,
            t=down.t,
            k=p.k,
            metrics=metrics,
            w=upload(net),
            s_in=s_in,
            s_out=s_out,
        )


@final
class Local:
    """l_local (equation 4), and the features of the last of the largest batches."""

    def __init__(self, net: Split, mu: float) -> None:
        self.net, self.mu = net, mu
        self.named = list(net.named_parameters())
        self.reference = {name: value.detach().clone() for name, value in self.named}
        self.kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        s_in = self.net.extractor(x)
        s_out = self.net.intermediate(s_in)
        if self.kept is None or len(s_in) >= len(self.kept[0]):
            self.kept = s_in.detach(), s_out.detach()
        cross_entropy = F.cross_entropy(self.net.classifier(s_out), y)
        return cross_entropy + self.mu * proximal(self.named, self.reference)

    def features(self, p: Participant, t: int, o: contract.Config) -> tuple[Tensor, Tensor]:
        """(s_in, s_out) as they leave the client: clipped sample by sample, blurred, float32."""
        assert self.kept is not None, "fit has seen a batch"
        generator = seeds.stream(p.config.run.seed, "feature-noise", p.k, t)
        s_in, s_out = (s.float().cpu().contiguous() for s in self.kept)
        return bounded(s_in, o, generator), bounded(s_out, o, generator)


def bounded(s: Tensor, o: contract.Config, generator: torch.Generator) -> Tensor:
    """Features [n, c, h, w] with norms of at most ``clip`` and noise of deviation ``noise``."""
    if o.clip:
        norms = s.flatten(1).norm(dim=1).clamp(min=o.clip)
        s = s * (o.clip / norms).view(-1, 1, 1, 1)
    if o.noise:
        s = s + o.noise * torch.randn(s.shape, generator=generator)
    return s


@final
class INTraining:
    """l_IN (equation 8) on the round's one batch S."""

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


def together(p: Participant, t: int, local: Local, in_training: INTraining) -> dict[str, float]:
    """One step along Z for each batch (equation 14 or 13)."""
    o: contract.Config = p.config.method
    inner, outer = parts(local.net)
    if o.grad_mode == "eq13":
        loss = opposed(local, in_training, inner, outer, o.outer_scale)
        return p.train(t, local.net.parameters(), loss)

    factor = o.lambda_local / 2
    if factor == 0 or o.outer_scale == factor:
        hooks = []
    else:  # extractor and classifier have no part in l_IN, so their gradients can be rescaled
        hooks = [w.register_hook(scaling(o.outer_scale / factor)) for w in outer]
    metrics = p.train(t, local.net.parameters(), lambda x, y: factor * local(x, y) + in_training())
    for hook in hooks:
        hook.remove()
    return metrics


def scaling(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda gradient: factor * gradient


def opposed(
    local: Local,
    in_training: INTraining,
    inner: list[nn.Parameter],
    outer: list[nn.Parameter],
    outer_scale: float,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Equation 13 on w_in, ``outer_scale`` G_local elsewhere; its value is l_local."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        l_local = local(x, y)
        g_local = torch.autograd.grad(l_local, [*inner, *outer])
        g_in = torch.autograd.grad(in_training(), inner)
        z = alleviated(g_in, g_local[: len(inner)])
        rest = [outer_scale * g for g in g_local[len(inner) :]]
        return with_gradient(l_local, [*z, *rest], [*inner, *outer])

    return loss


def sequential(p: Participant, t: int, local: Local, in_training: INTraining) -> dict[str, float]:
    """After each step of l_local one of l_IN, on w_in alone, with an optimiser of its own."""
    train = p.config.train
    optimizer = optimise.make(
        parts(local.net)[0],
        train.optimizer,
        train.lr,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
    )
    pending = False

    def step() -> None:
        precision = p.config.run.precision
        fit(
            optimizer,
            [(in_training.s_in,)],
            lambda _: in_training(),
            clip=train.clip,
            precision=precision,
        )

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nonlocal pending
        if pending:
            step()
        pending = True
        return local(x, y)

    metrics = p.train(t, local.net.parameters(), loss)
    step()
    return metrics


def parts(net: Split) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of w_in, and those of extractor and classifier."""
    named = list(net.named_parameters())
    inner = [w for name, w in named if net.part(name) == "intermediate"]
    return inner, [w for name, w in named if net.part(name) != "intermediate"]
