"""The task: the classes and samples of a run, and how networks for them are built and trained.

Server and clients have the same task, on different devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from common import models, progress, seeds
from common.data import kinds, noise
from common.data.batches import Batches, check_augment, lengths, standardise
from common.data.dataset import Dataset
from common.data.kinds import IMAGE, TOKENS, Kind
from common.errors import first_line
from common.exchange.records import StateDict
from common.measures import ACCURACY, Values
from common.models import hugging_face
from common.models import weights as weights_
from common.models.adapters import Adapter, check_targets
from common.models.batchnorm import batch_statistics
from common.models.card import Card
from common.models.classifier import Classifier
from common.models.layers import Shape
from common.models.shapes import without_values
from common.objectives import Classes, Objective
from common.settings.config import Config, MemoryFormat, listed, not_allowed
from common.settings.plugins import OF_FOLDER, network
from common.training import optimise
from common.training.costs import counting
from common.training.device import Net, arrange
from common.training.fit import Loss, fit
from common.training.optimise import Moments

Extend = Callable[[Iterable[tuple[Tensor, ...]]], Iterable[tuple[Tensor, ...]]]
"""Function from training batches (x, y) to the batches that a loss takes."""
Form = tuple[Shape, int, str, bool, int, Adapter]
"""Input shape, number of outputs and stem of a network, projection, feature width and adapters."""


@final
@dataclass(frozen=True)
class Task:
    """Samples of ``shape`` in ``classes``, normalised by ``mean`` and ``std``.

    ``device``: where the server or this client computes.
    """

    shape: Shape
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    config: Config
    device: torch.device
    bytes: bool = True  #: whether samples are bytes
    columns: tuple[str, ...] = ()  #: of a table that has names for them
    learnt: Objective | None = None  #: what is learnt; None: one of ``classes``
    tokenizer: str = ""  #: of texts, with a digest of its vocabulary

    @classmethod
    def of(cls, config: Config, dataset: Dataset, device: torch.device) -> Task:
        """Return the task of a data set under a run's configuration."""
        statistics, columns = (dataset.mean, dataset.std), dataset.account.features
        of_bytes = dataset.x.dtype == torch.uint8
        goal = dataset.goal(config.train.regression_loss, prompts=bool(config.data.prompt))
        fields = dataset.shape, dataset.classes, *statistics, config, device, of_bytes, columns
        return cls(*fields, goal, dataset.tokenizer)

    @property
    def kind(self) -> Kind:
        """Kind of the samples: images, signals, tables or tokens."""
        return kinds.of(self.shape)

    @property
    def num_classes(self) -> int:
        """Number of outputs of a network: classes, labels or targets."""
        return len(self.classes)

    @property
    def objective(self) -> Objective:
        """What is learnt: loss, predictions and scores."""
        return self.learnt or Classes(self.classes)

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
        """Kind, shape, number of classes, digest of their names, objective, and digest of the base
        of adapters, for the census."""
        digest = hashlib.sha256("\n".join(self.classes).encode()).hexdigest()[:12]
        shape = f"{self.kind.name}:{'x'.join(map(str, self.shape))}"
        if vocab := kinds.vocab_of(self.shape):
            shape += f" of {vocab} ({self.tokenizer})"
        further = filter(None, [self.objective.fingerprint, self.base_of(global_spec(self))])
        return "/".join([shape, str(self.num_classes), digest, *further])

    def fingerprint_with(self, spec: str) -> str:
        """Return the fingerprint, with the base of ``spec`` if it is not the server's.

        Only networks that the run names have one here, so that no client makes the server build
        another. Raises ``ValueError``, one line, for a network that does not suit the task.
        """
        other = models.frozen(spec) != models.frozen(global_spec(self))
        base = self.base_of(spec) if other and spec in self.config.brought else ""
        return "/".join(filter(None, [self.fingerprint, base]))

    def base_of(self, spec: str) -> str:
        """Return name and digest of the base of a network with adapters; empty if it has none."""
        base = models.frozen(spec)
        return f"base {base} {weights_.digest(self.base(base))}" if base else ""

    @property
    def adapter(self) -> Adapter:
        """Settings of the networks' adapters."""
        o = self.config.adapter
        return Adapter(o.scale, o.alpha, tuple(listed(o.targets)), o.dropout, o.base)

    def card(self, spec: str) -> Card:
        """Return what the use of a network of the architecture ``spec`` needs."""
        return Card(
            method=self.config.run.method,
            architecture=spec,
            kind=self.kind.name,
            shape=self.shape,
            bytes=self.bytes,
            classes=self.classes,
            mean=self.mean,
            std=self.std,
            standardize=self.config.data.standardize,
            columns=self.columns,
            vocab=kinds.vocab_of(self.shape),
            tokenizer=self.tokenizer,
            objective=self.objective.name,
            **self.objective.scale,
        )

    # Networks.

    def _form(self, classes: int = 0) -> Form:
        width, outputs = self.config.run.feature_dim, classes or self.num_classes
        return self.shape, outputs, self.stem, self.projection, width, self.adapter

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
        """Return a network on the device with ``weights``, else with those of the draw ``name``.

        ``classes``: number of outputs; 0: all classes of the task. ``first``: without ``weights``,
        the network starts from the run's file of weights, if there is one.

        Raises ``ValueError``, one line, for ``weights`` of another architecture.
        """
        form = self._form(classes)
        base = self.base(plain, classes) if (plain := models.frozen(spec)) else None
        net = models.build(spec, *form, seed=self.seed, name=name, pretrained=pretrained, base=base)
        if weights is not None:
            try:
                net.load_state_dict(weights)
            except RuntimeError as error:  # torch lists every parameter
                why = first_line(str(error).partition("\n")[2], 160)
                raise ValueError(
                    f"weights from a message or from saved state do not fit {spec}: {why}"
                ) from None
        elif first and base is None and (file := self.config.run.weights):
            net.load_state_dict(self._from_file(net, file), strict=False)
        return self.place(net)

    def base(self, spec: str, classes: int = 0) -> Classifier:
        """Return the frozen network below adapters, on the device; a process builds it once.

        Its weights are the run's first weights, also with the published ones if ``pretrained``, and
        equal on the server and all clients.
        """
        run, classes = self.config.run, classes or self.num_classes
        path = weights_.path_of(run.weights, spec) if run.weights else None
        stamp = path.stat().st_mtime_ns if path is not None and path.is_file() else 0
        stamp += hugging_face.stamp(self.adapter.base)
        key = (spec, self.seed, self._form(classes), str(path), stamp, run.pretrained, self.device)
        if key not in _BASES:
            published = run.pretrained and models.published(spec)
            name = ("init", "global")
            net = self.build(spec, name=name, classes=classes, pretrained=published, first=True)
            if len(_BASES) >= MOST_BASES:
                _BASES.clear()
            _BASES[key] = net
        return _BASES[key]

    def frozen_bytes(self, spec: str) -> int:
        """Return the bytes of the base of a network with adapters; 0: it has none."""
        base = models.frozen(spec)
        return sum(w.nbytes for w in self.base(base).state_dict().values()) if base else 0

    def cached_network(self, spec: str, weights: StateDict) -> Classifier:
        """Return a network with ``weights`` for evaluation, valid until the next call.

        Drawing initial weights takes longer than loading others. A process therefore reuses one
        network for each of our own architectures.
        """
        if models.parse(spec)[0] not in models.MODELS:
            return self.build(spec, weights, name=("shown",))
        net = _cached_network(spec, self._form(), self.config.train.memory_format)
        net.load_state_dict(weights)
        return net.to(self.device)

    def check_weights(self, spec: str) -> None:
        """Raise a one-line ``ValueError`` if the run's weights file does not fit ``spec``."""
        if file := self.config.run.weights:
            self._from_file(self.without_values(models.frozen(spec) or spec), file)

    def without_values(self, spec: str) -> Classifier:
        """Return a network on torch's device ``meta``: shapes and dtypes without values.

        All calls return the same network; do not change it.
        """
        return _without_values(spec, self._form())

    def _from_file(self, net: Classifier, file: str) -> StateDict:
        path = weights_.path_of(file, net.spec)
        return weights_.fitted(net, weights_.read(path), path)

    def place(self, net: Net) -> Net:
        """Move a network to the device, in the configured memory format."""
        return arrange(net, self.config.train.memory_format).to(self.device)

    def expected(self, spec: str) -> StateDict:
        """Return an architecture's state dict on ``meta``: names, shapes and dtypes, no values."""
        return _layers(spec, self._form())

    def parameters(self, spec: str) -> int:
        """Return how many parameters an architecture has for this task."""
        return models.parameters(spec, *self._form())

    # Training and evaluation.

    def optimizer(self, t: int, parameters: ParamsT) -> torch.optim.Optimizer:
        """Return round t's optimiser of the table [train]."""
        return optimise.of(parameters, self.config.train, t, self.config.run.rounds)

    def generator_optimizer(
        self, t: int, parameters: Iterable[nn.Parameter]
    ) -> torch.optim.Optimizer:
        """Return round t's optimiser of the table [generator]."""
        return optimise.of(parameters, self.config.generator, t, self.config.run.rounds)

    def lr(self, t: int) -> float:
        """Return the learning rate of local training in round t."""
        return self.config.train.lr_at(t, self.config.run.rounds)

    def steps(self, n: int, limit: int = 0) -> int:
        """Return how many optimiser steps local training on n samples takes in a round.

        ``limit``: the most that the request allows; 0: no limit.
        """
        train = self.config.train
        steps = train.steps or train.epochs * len(lengths(n, train.batch_size, train.drop_last))
        return min(limit or steps, steps)

    def effective_steps(self, n: int, limit: int = 0) -> float:
        """Return the length of these steps on a constant gradient, which momentum increases."""
        train = self.config.train
        momentum = train.momentum if optimise.is_sgd(train) else 0.0
        return optimise.effective(self.steps(n, limit), momentum)

    def batches(
        self,
        x: Tensor,
        y: Tensor,
        *name: str | int,
        drop_last: bool = False,
        size: int = 0,
        augment: str = "",
        order: Tensor | None = None,
    ) -> Batches:
        """Return training batches of x [n, C, ...] and y [n, ...].

        Order and augmentation come from the stream ("batches", *name). ``size`` and ``augment``: by
        default train.batch-size and data.augment. ``order``: rows [n] for every epoch.
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
            order=order,
        )

    def in_order(
        self, x: Tensor, y: Tensor | None = None, size: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples in order, normalised, in batches of ``size``; 0: score.batch-size."""
        y = torch.zeros(len(x), dtype=torch.int64) if y is None else y
        size, how = size or self.config.score.batch_size, self.config.data.standardize
        for start in progress.steps(range(0, len(x), size), "batch"):
            batch = slice(start, start + size)
            samples = standardise(x[batch].to(self.device), self.mean, self.std, how)
            yield samples, y[batch].to(self.device)

    def mixed(self, x: Tensor, y: Tensor, *name: str | int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return batches of all samples, normalised, for networks that use batch statistics.

        The order is drawn from the stream ``name``, so that no batch consists of one class. Batches
        have equal sizes of about score.batch-size, and at least two samples where n ≥ 2.
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
        moments: Moments | None = None,
    ) -> dict[str, float]:
        """Call ``common.training.fit`` with the run's optimiser of round t, clipping and precision.

        ``after``: called after each step, without gradients, to correct the weights after an
        optimiser such as Adam. ``moments``: state that the optimiser starts from and updates; None:
        a new optimiser.
        """
        optimizer = self.optimizer(t, parameters)
        if moments is not None:
            optimise.restore_moments(optimizer, moments.state)
        if after is not None:
            correct = torch.no_grad()(after)
            optimizer.register_step_post_hook(lambda *_: correct())
        metrics = fit(
            optimizer,
            batches,
            loss,
            clip=self.config.train.clip,
            precision=self.config.run.precision,
        )
        if moments is not None:
            moments.state = optimise.moments(optimizer)
        return metrics

    @torch.no_grad()
    def logits(self, net: Classifier, x: Tensor) -> Tensor:
        """Return the network's logits [n, C] on samples x, in evaluation mode, on the CPU."""
        net.eval()
        return torch.cat([net(samples).float().cpu() for samples, _ in self.in_order(x)])


def epochs(batches: Iterable[tuple[Tensor, ...]], count: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield ``batches`` ``count`` times over."""
    for _ in progress.steps(range(count), "epoch"):
        yield from progress.steps(batches, "batch")


MOST_BASES = 4
_BASES: dict[tuple[object, ...], Classifier] = {}
"""Networks below adapters, by what decides their weights; at most ``MOST_BASES``."""


@lru_cache(maxsize=64)
def _without_values(spec: str, form: Form) -> Classifier:
    with without_values():
        return models.build(spec, *form, seed=0)


@lru_cache(maxsize=64)
def _layers(spec: str, form: Form) -> StateDict:
    return dict(_without_values(spec, form).state_dict())


@lru_cache(maxsize=4)
def _cached_network(spec: str, form: Form, layout: MemoryFormat) -> Classifier:
    return arrange(models.build(spec, *form, seed=0), layout)


class Result(NamedTuple):
    """Scores of a network on n samples."""

    measures: Values  #: by name, the objective's primary one first
    loss: float  #: mean, such as the cross-entropy in nats
    outputs: Tensor  #: ``Objective.digest`` of the network's, [n, ...] on the CPU
    y: Tensor  #: true values on the CPU
    by_output: Mapping[str, Sequence[float | None]]  #: of each label or target

    @property
    def score(self) -> float | None:
        """The primary score; None if these samples do not define it."""
        return next(iter(self.measures.values()))

    @property
    def accuracy(self) -> float:
        """Share of the samples whose largest logit is that of their class, in [0, 1]."""
        accuracy = self.measures[ACCURACY.name]
        assert accuracy is not None
        return accuracy


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
    """Return the scores of ``net`` on x [n, C, ...] and y [n, ...], n ≥ 1.

    ``bn``: statistics for BatchNorm, by default ``score.bn``. ``batch`` uses those of each test
    batch, in an order drawn from the stream ``name`` (transductive: the prediction for one sample
    depends on its batch). Other values use the running statistics, which clients have measured
    under ``recalibrated``.
    """
    by_batch = (bn or task.config.score.bn) == "batch" and len(x) > 1
    was_training = net.training
    net.eval()
    found, true, loss = list[Tensor](), list[Tensor](), 0.0
    with batch_statistics(net) if by_batch else nullcontext():
        for samples, labels in task.mixed(x, y, *name) if by_batch else task.in_order(x, y):
            outputs = net(samples)
            loss += float(task.objective.total(outputs, labels))
            found.append(task.objective.digest(outputs.float(), labels).cpu())
            true.append(labels.cpu())
    net.train(was_training)
    outputs, labels = torch.cat(found), torch.cat(true)
    scores = task.objective.scores(outputs, labels)
    return Result(
        scores.measures, loss / task.objective.terms(labels), outputs, labels, scores.by_output
    )


def global_spec(task: Task) -> str:
    """Return the server's architecture; ``smallest``: the fleet's one with fewest parameters."""
    config = task.config
    if config.run.global_model != "smallest":
        return config.run.global_model
    if config.method.dense and (base := models.frozen(config.fleet[0])):
        return models.with_rank(base, 0)
    shape, classes, stem, _, width, adapter = task._form()
    return models.smallest(config.fleet, shape, classes, stem, False, width, adapter)


def check_architectures(config: Config) -> None:
    """Raise a one-line ``ValueError`` for an architecture that does not exist."""
    own = config.run.global_model
    for spec in (*config.brought, *(() if own == "smallest" else (own,))):
        models.parse(spec)


def check_fleet(task: Task) -> None:
    """Raise a one-line ``ValueError`` if the fleet does not suit the task or the method.

    The method and its noise must take this kind of input. Every architecture must exist and accept
    the input shape. With ``flops``, all operations of the networks must have formulas.
    """
    config = task.config
    method = config.method
    for what, why, applies in (
        ("images only", method.images, task.kind is not IMAGE),
        ("no texts", method.no_texts, task.kind is TOKENS),
    ):
        if why and applies:
            raise ValueError(
                f'method = "{config.run.method}" takes {what}: {why}; the data are '
                f"{kinds.describe(task.shape)}"
            )
    check_objective(task)
    if task.kind is TOKENS and (how := config.data.standardize) != "dataset":
        raise not_allowed("data.standardize", how, "texts: tokens have no mean", "dataset")
    if "noise" in config.method.uses:
        noise.check(config.noise.kind, task.shape)
    for spec in config.brought:
        models.check(spec, task.shape, task.num_classes, stem=task.stem)
        if network(spec) == OF_FOLDER:
            hugging_face.check_tokenizer(config.adapter.base, task.tokenizer)
            task.without_values(spec)
    with_adapters = [task.without_values(spec) for spec in config.brought if models.frozen(spec)]
    check_targets(with_adapters, task.adapter.targets if with_adapters else ())
    config.method.check_fleet(task, config.brought)
    if config.run.global_model != "smallest":
        models.check(config.run.global_model, task.shape, task.num_classes, stem=task.stem)
    for spec in {*config.brought, global_spec(task)} if config.run.flops else ():
        _check_counted(task, spec)


def check_objective(task: Task) -> None:
    """Raise ``ValueError``, one line, if method or settings do not suit what is learnt."""
    config, learnt, name = task.config, task.objective, task.objective.name
    if name not in (known := config.method.objectives):
        raise ValueError(
            f'method = "{config.run.method}" learns {" or ".join(known)}, but the data have '
            f"{name}: {config.method.classes_only}"
        )
    if (weights := config.train.class_weights) != "none" and not learnt.one_each:
        raise not_allowed("train.class-weights", weights, f"{name}: samples have no class", "none")
    for key, value, usual in (
        ("train.regression-loss", config.train.regression_loss, "mse"),
        ("data.target-mean", config.data.target_mean, ""),
        ("data.target-std", config.data.target_std, ""),
    ):
        if value != usual and not learnt.scale:
            raise not_allowed(key, value, f"{name}: the data have no numbers to learn", usual)
    learnt.primary.check("score.target", config.score.target)


def _check_counted(task: Task, spec: str) -> None:
    """Raise ``ValueError``, one line, if a step of this network has operations without formula."""
    samples = kinds.zeros(2, task.shape, task.device)  # BatchNorm needs two
    with seeds.scope(task.seed, "counted", spec), counting(True):
        net = task.build(spec, name=("counted",)).train()
        torch.autograd.grad(net(samples).sum(), [*net.parameters()], allow_unused=True)
