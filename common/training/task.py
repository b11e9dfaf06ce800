"""The task: what is classified, and how this run builds, feeds and trains networks for it.

The same on the server and at every client, but for the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from common import models, progress
from common.data.batches import Batches, check_augment, lengths, standardise
from common.data.dataset import Dataset
from common.exchange.records import StateDict
from common.models import weights as weights_
from common.models.batchnorm import batch_statistics
from common.models.classifier import Classifier
from common.models.layers import Shape
from common.settings.config import Config, MemoryFormat
from common.training import optimise, seeds
from common.training.device import Net, arrange
from common.training.fit import Loss, fit

Extend = Callable[[Iterable[tuple[Tensor, ...]]], Iterable[tuple[Tensor, ...]]]
"""Turns training batches (x, y) into those that a loss takes."""
Form = tuple[Shape, int, str, bool]
"""What a network is built for: input, outputs, stem, and whether there is a projection."""


@final
@dataclass(frozen=True)
class Task:
    """Images of ``shape`` (C, H, W) in ``classes``, normalised by ``mean`` and ``std``.

    ``device``: where this side computes.
    """

    shape: Shape
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    config: Config
    device: torch.device

    @classmethod
    def of(cls, config: Config, dataset: Dataset, device: torch.device) -> Task:
        """The task of a data set under a run's configuration."""
        return cls(dataset.shape, dataset.classes, dataset.mean, dataset.std, config, device)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def stem(self) -> str:
        return self.config.run.stem

    @property
    def projection(self) -> bool:
        """Whether networks have MOON's projection before their heads."""
        return self.config.run.projection == "on"

    @property
    def fingerprint(self) -> str:
        """Input shape and digest of the class names in order, for the census."""
        digest = hashlib.sha256("\n".join(self.classes).encode()).hexdigest()[:12]
        return f"{'x'.join(map(str, self.shape))}/{self.num_classes}/{digest}"

    # Networks.

    def _form(self, classes: int = 0) -> Form:
        return self.shape, classes or self.num_classes, self.stem, self.projection

    def build(
        self,
        spec: str,
        weights: StateDict | None = None,
        *,
        name: tuple[str | int, ...],
        classes: int = 0,
        pretrained: bool = False,
        first: bool = False,
    ) -> Classifier:
        """A network on the device: with ``weights``, else as the draw ``name`` makes it.

        ``classes``: outputs; 0: all classes of the task. ``first``: without ``weights`` it starts
        from the run's file of weights, if there is one.
        """
        form = self._form(classes)
        net = models.build(spec, *form, seed=self.seed, name=name, pretrained=pretrained)
        if weights is not None:
            net.load_state_dict(weights)
        elif first and (file := self.config.run.weights):
            net.load_state_dict(self._from_file(net, file), strict=False)
        return self.place(net)

    def shown(self, spec: str, weights: StateDict) -> Classifier:
        """A network with ``weights`` that is only looked at, until the next call.

        Drawing what the weights then overwrite takes longer than loading them, so a process keeps
        one network of each of our own architectures for this.
        """
        if models.parse(spec)[0] not in models.MODELS:
            return self.build(spec, weights, name=("shown",))
        net = _shown(spec, self._form(), self.config.train.memory_format)
        net.load_state_dict(weights)
        return net.to(self.device)

    def check_weights(self, spec: str) -> None:
        """Raise a one-line ``ValueError`` if a network of this architecture cannot start from the
        run's file of weights.
        """
        if file := self.config.run.weights:
            self._from_file(self.without_values(spec), file)

    def without_values(self, spec: str) -> Classifier:
        """A network of this architecture on torch's device ``meta``: shapes and dtypes alone."""
        with torch.device("meta"):
            return models.build(spec, *self._form(), seed=0)

    def _from_file(self, net: Classifier, file: str) -> StateDict:
        path = weights_.path_of(file, net.spec)
        return weights_.fitted(net, weights_.read(path), path)

    def place(self, net: Net) -> Net:
        """Move a network to the device, in the configured memory format."""
        return arrange(net, self.config.train.memory_format).to(self.device)

    def expected(self, spec: str) -> StateDict:
        """Names, shapes and dtypes of an architecture's state dict; the values mean nothing."""
        return _layers(spec, self._form())

    def parameters(self, spec: str) -> int:
        """How many parameters an architecture has for this task."""
        return models.parameters(spec, *self._form())

    # Training and evaluation.

    def optimizer(self, t: int, parameters: ParamsT) -> torch.optim.Optimizer:
        """What [train] asks for in round t."""
        return optimise.of(parameters, self.config.train, t, self.config.run.rounds)

    def generator_optimizer(
        self, t: int, parameters: Iterable[nn.Parameter]
    ) -> torch.optim.Optimizer:
        """What [generator] asks for in round t."""
        return optimise.of(parameters, self.config.generator, t, self.config.run.rounds)

    def lr(self, t: int) -> float:
        """The learning rate of local training in round t."""
        return self.config.train.lr_at(t, self.config.run.rounds)

    def steps(self, n: int) -> int:
        """How many optimiser steps local training takes in a round on n samples."""
        train = self.config.train
        return train.steps or train.epochs * len(lengths(n, train.batch_size))

    def effective_steps(self, n: int) -> float:
        """What those steps amount to on a constant gradient: more than they are under momentum."""
        train = self.config.train
        momentum = train.momentum if optimise.is_sgd(train) else 0.0
        return optimise.effective(self.steps(n), momentum)

    def batches(
        self,
        x: Tensor,
        y: Tensor,
        *name: str | int,
        drop_last: bool = False,
        size: int = 0,
        augment: str = "",
    ) -> Batches:
        """Return training batches of x [n, C, H, W] and y [n, ...].

        Drawn from the stream ("batches", *name). ``size`` and ``augment``: by default
        train.batch-size and data.augment.
        """
        augment = augment or self.config.data.augment
        check_augment(augment, x)
        return Batches(
            x,
            y,
            batch_size=size or self.config.train.batch_size,
            mean=self.mean,
            std=self.std,
            augment=augment,
            standardize=self.config.data.standardize,
            generator=seeds.stream(self.seed, "batches", *name),
            device=self.device,
            drop_last=drop_last,
        )

    def in_order(
        self, x: Tensor, y: Tensor | None = None, size: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples in order, normalised; ``size``: of a batch, 0: score.batch-size."""
        y = torch.zeros(len(x), dtype=torch.int64) if y is None else y
        size, how = size or self.config.score.batch_size, self.config.data.standardize
        for start in progress.steps(range(0, len(x), size), "batch"):
            part = slice(start, start + size)
            images = standardise(x[part].to(self.device), self.mean, self.std, how)
            yield images, y[part].to(self.device)

    def mixed(self, x: Tensor, y: Tensor, *name: str | int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sample once, normalised, for networks on the statistics of the batch at hand.

        In an order drawn from the stream ``name``, so that no batch holds one class alone, and in
        equal batches of at most score.batch-size, none of them a lone sample where n ≥ 2.
        """
        order = torch.randperm(len(x), generator=seeds.stream(self.seed, *name))
        size = -(-len(x) // -(-len(x) // self.config.score.batch_size))
        while size < len(x) and len(x) % size == 1:
            size += 1
        return self.in_order(x[order.to(x.device)], y[order.to(y.device)], size)

    def fit(
        self,
        t: int,
        parameters: ParamsT,
        batches: Iterable[tuple[Tensor, ...]],
        loss: Loss,
        after: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """``common.training.fit`` with round t's optimiser, the clipping and the precision of the
        run.

        ``after``: called after each step, without gradients, for what corrects the weights that an
        optimiser such as Adam leaves.
        """
        optimizer = self.optimizer(t, parameters)
        if after is not None:
            correct = torch.no_grad()(after)
            optimizer.register_step_post_hook(lambda *_: correct())
        return fit(
            optimizer,
            batches,
            loss,
            clip=self.config.train.clip,
            precision=self.config.run.precision,
        )

    @torch.no_grad()
    def logits(self, net: Classifier, x: Tensor) -> Tensor:
        """The network's logits [n, C] on images x, in evaluation mode, on the CPU."""
        net.eval()
        return torch.cat([net(images).float().cpu() for images, _ in self.in_order(x)])


def epochs(batches: Iterable[tuple[Tensor, ...]], count: int) -> Iterator[tuple[Tensor, ...]]:
    """``batches`` gone through ``count`` times."""
    for _ in progress.steps(range(count), "epoch"):
        yield from progress.steps(batches, "batch")


@lru_cache(maxsize=64)
def _layers(spec: str, form: Form) -> StateDict:
    with torch.device("meta"):
        return dict(models.build(spec, *form, seed=0).state_dict())


@lru_cache(maxsize=4)
def _shown(spec: str, form: Form, layout: MemoryFormat) -> Classifier:
    return arrange(models.build(spec, *form, seed=0), layout)


class Result(NamedTuple):
    accuracy: float  #: share of samples whose largest logit is the label's, in [0, 1]
    loss: float  #: mean cross-entropy in nats


@torch.no_grad()
def evaluate(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    task: Task,
    *,
    bn: str = "",
    name: tuple[str | int, ...] = ("score",),
) -> Result:
    """Score ``net`` on x [n, C, H, W] and y [n], n ≥ 1.

    ``bn``, by default ``score.bn``: ``batch``: BatchNorm by the statistics of each test batch, in
    an order drawn from the stream ``name`` (transductive: the answer for one image depends on its
    neighbours); else by the running ones, which under ``recalibrated`` clients have measured.
    """
    by_batch = (bn or task.config.score.bn) == "batch" and len(x) > 1
    was_training = net.training
    net.eval()
    correct, loss = 0, 0.0
    with batch_statistics(net) if by_batch else nullcontext():
        for images, labels in task.mixed(x, y, *name) if by_batch else task.in_order(x, y):
            logits = net(images)
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    net.train(was_training)
    return Result(correct / len(x), loss / len(x))


def global_spec(task: Task) -> str:
    """The server's architecture; ``smallest`` is the fleet's one with the fewest parameters."""
    config = task.config
    if config.run.global_model != "smallest":
        return config.run.global_model
    return models.smallest(config.fleet, task.shape, task.num_classes, stem=task.stem)


def check_architectures(config: Config) -> None:
    """Raise a one-line ``ValueError`` for an architecture that does not exist."""
    own = config.run.global_model
    for spec in (*config.brought, *(() if own == "smallest" else (own,))):
        models.parse(spec)


def check_fleet(task: Task) -> None:
    """Raise a one-line ``ValueError`` if an architecture is unknown or cannot take the input, or if
    the method asks something of the fleet that it does not have.
    """
    config = task.config
    for spec in config.brought:
        models.check(spec, task.shape, task.num_classes, stem=task.stem)
    config.method.check_fleet(task, config.brought)
    if config.run.global_model != "smallest":
        models.check(config.run.global_model, task.shape, task.num_classes, stem=task.stem)
