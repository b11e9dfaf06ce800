"""Participant k: its data, models, local training and saved state.

A client half uses it for everything that does not depend on the method.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from client_app.node import check, limit_memory
from client_app.store import Ledger, Store
from common import models, progress, seeds
from common.data import divide, load, pool_of
from common.data.dataset import Dataset
from common.data.overview import clients_of, overview
from common.data.shares import Share, check_public, for_testing, share
from common.exchange import tree
from common.exchange.protocol import NO_PLACE, ToClient, ToServer
from common.exchange.records import Records, StateDict
from common.files import home
from common.keys import decisive
from common.models.batchnorm import measure
from common.models.classifier import Classifier
from common.names import check_requested
from common.settings.config import OWN, Config, Value
from common.techniques.privacy import NAME as KEY
from common.techniques.privacy import Secret
from common.training import device
from common.training.fit import Loss
from common.training.optimise import Moments
from common.training.task import Extend, Result, Task, epochs, evaluate, global_spec

R = TypeVar("R", bound=Records)


@final
class Participant:
    """Client k of ``clients``, configured by its node and the run.

    ``node``: the node's own settings (``client_app/node.py``), which override the run's.
    Raises ``ValueError`` for invalid settings.
    """

    def __init__(self, config: Config, node: Mapping[str, Value], experiment: str) -> None:
        check(node, strict=False)
        self.learnt = str(node.get("learnt-dir", ""))  # from the node alone, never from the run
        self.k = _required(node, "partition-id")
        self.own = node  #: the node's settings, without the run's
        self.node = node = {**config.node(self.k), **node}
        if weights := node.get("weights"):
            config = config.with_run(weights=weights)
        if base := node.get("base"):
            adapter = config.adapter.model_copy(update={"base": base})
            config = config.model_copy(update={"adapter": adapter})
        self.config = config
        self.clients = config.run.clients or _required(node, "num-partitions")
        if self.k >= self.clients:
            raise ValueError(f"partition-id = {self.k}, {NO_PLACE} {self.clients}")
        self.spec = str(node.get("model", config.fleet[self.k % len(config.fleet)]))
        limit_memory(int(node.get("memory-mb", 0)))
        device.settle(int(node.get("threads", config.run.threads)))
        self.device = device.choose(str(node.get("device", config.run.device)))
        self._data = config.data_of(self.k, node)
        state_dir = Path(
            str(node.get("state-dir", ""))
            or os.environ.get("FEDMOSAIC_STATE_DIR", "")
            or config.run.state_dir
            or home() / ".fedmosaic" / "state"
        )
        self._store = Store(state_dir, experiment, self.k, config.run.keep)
        self.folder = self._store.folder  #: folder of the saved state; it need not exist
        self.ledger = Ledger.of(self.own, self.k, self.folder)
        self.limit = 0  #: maximum number of local steps in this round; 0: as [train] says
        self._saved = 0  #: round of the state that this process saved; 0: none

    @cached_property
    def dataset(self) -> Dataset:
        """The data set without its public part; the clients' shares are drawn from it."""
        return pool_of(self._data, self.config.partition_seed)

    @cached_property
    def public(self) -> Tensor:
        """Public samples [N, C, ...], in the same order on the server and all clients."""
        public = divide(self._data, self.config.partition_seed).public
        if public is None:
            raise ValueError("there is no public set: set data.public, public-name or public-dir")
        return public

    def check_public(self) -> None:
        """Raise ``ValueError`` without a public set, or if it has images of the local test part."""
        _ = self.public
        x, _ = self._share.test_set
        check_public(self._data, x, f"client {self.k}", self.config.partition_seed)

    @cached_property
    def public_labels(self) -> Tensor | None:
        """True classes [N] of the public images; None if they are not the task's classes."""
        return divide(self._data, self.config.partition_seed).labels

    @cached_property
    def _share(self) -> Share:
        return share(self._data, self.k, self.clients, self.config.partition_seed)

    def describe_data(self) -> Iterator[str]:
        """Yield a line for each fact about this client's data, for its own log alone."""
        found = overview(load(self._data))
        yield from (f"{heading}: {text}" for heading, text in found.rows())
        if self.config.data.has_client_tests:
            of_client = replace(found, clients=clients_of([self._share], self.k))
            yield from (f"note: {line}" for line in of_client.warnings())

    @cached_property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """Training samples (x uint8 [n, C, H, W], y int64 [n]) on the client's device."""
        x, y = self._share.train_set
        return x.to(self.device), y.to(self.device)

    @cached_property
    def _order(self) -> Tensor:
        """Order of the training samples [n] in every epoch without ``train.shuffle``."""
        return torch.randperm(self.n, generator=seeds.stream(self.task.seed, "order", self.k))

    @cached_property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """Test samples (x uint8 [n, C, H, W], y int64 [n]) on the client's device."""
        x, y = self._share.test_set
        return x.to(self.device), y.to(self.device)

    @property
    def n(self) -> int:
        """Number of local training samples n_k."""
        return len(self._share.train)

    @property
    def targets(self) -> int:
        """Number of their tokens to learn, or of samples if what is learnt are no tokens."""
        return self.task.objective.terms(self.dataset.y[self._share.train])

    @property
    def weight(self) -> int:
        """Weight of this client in the mean of updates, by ``average.weights``."""
        match self.config.average.weights:
            case "uniform":
                return 1
            case "tokens":
                return self.targets
        return self.n

    @property
    def n_test(self) -> int:
        return len(self._share.test)

    @cached_property
    def counts(self) -> list[int]:
        """Number of local training samples of each class [C] (``Dataset.counts``)."""
        return self.dataset.counts(self.dataset.y[self._share.train])

    @cached_property
    def class_weights(self) -> Tensor | None:
        """Weights [C] of the classes in the loss of labels; None: all are 1 (train.class-weights).

        ``balanced``: n / (C n_c) for n_c of the n samples and C classes that this client has. A
        batch's loss is the weighted mean.
        """
        if self.config.train.class_weights == "none":
            return None
        counts = torch.tensor(self.counts, dtype=torch.float32, device=self.device)
        held = counts > 0
        return torch.where(held, counts.sum() / (held.sum() * counts.clamp(min=1)), 0.0)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the objective's mean loss of outputs [n, C] for true values y [n, ...]."""
        return self.task.objective.loss(outputs, y, self.class_weights)

    def supervised(self, net: nn.Module) -> Loss:
        """Return the loss of ``net`` as a function of a batch (x, y)."""
        return lambda x, y: self.loss(net(x), y)

    @cached_property
    def task(self) -> Task:
        """The learning task, on this client's device."""
        return Task.of(self.config, self.dataset, self.device)

    @cached_property
    def global_spec(self) -> str:
        """Architecture of the global model."""
        return global_spec(self.task)

    def model(
        self, spec: str, weights: StateDict | None = None, *, classes: int = 0, part: str = ""
    ) -> Classifier:
        """Return a network on the client's device, with ``weights`` or with client k's first draw.

        ``classes``: number of outputs, 0 for all classes of the task. ``part``: name of the random
        stream for a second network of the same client.
        """
        run = self.config.run
        if spec != self.spec:
            check_requested(spec, self.config)
        return self.task.build(
            spec,
            weights,
            name=("init", *([part] if part else []), "client", self.k),
            classes=classes,
            pretrained=weights is None and run.pretrained and models.published(spec),
            first=not part,
        )

    def initial(self, spec: str) -> Classifier:
        """Return a network on the client's device with the server's initial weights."""
        if spec != self.spec:
            check_requested(spec, self.config)
        return self.task.build(spec, name=("init", "global"), first=True)

    def train(
        self,
        t: int,
        parameters: ParamsT,
        loss: Loss,
        extend: Extend | None = None,
        after: Callable[[], None] | None = None,
        times: int = 0,
        moments: Moments | None = None,
        phase: str = "",
        skip: int = 0,
    ) -> dict[str, float]:
        """Minimise ``loss`` on the local samples in round t; return the scalars of ``fit``.

        ``extend`` maps the batches (x [b, C, ...] float32 normalised, y [b]) to the arguments of
        ``loss``. ``after`` is called after each step. ``times``: number of epochs where
        ``train.steps`` is 0; 0: ``train.epochs``. ``moments``: as for ``Task.fit``. ``phase``: name
        of the random streams of a second training in the round. ``skip``: number of samples to
        leave out, the first ones. With partial work (``limit``) each training of the round takes
        the same share of its steps.
        """
        train, own = self.config.train, [phase] if phase else []
        x, y = self.train_set
        one = self.task.batches(
            x[skip:],
            y[skip:],
            *own,
            self.k,
            t,
            drop_last=train.steps > 0 or train.drop_last,
            order=None if train.shuffle else self._order[self._order >= skip] - skip,
        )
        some = progress.steps(one.take(train.steps), "step", train.steps)
        batches = some if train.steps else epochs(one, times or train.epochs)
        if self.limit:
            full = train.steps or (times or train.epochs) * len(one)
            batches = islice(batches, -(-full * self.limit // self.task.steps(self.n)))
        with seeds.scope(self.task.seed, "train", *own, self.k, t):
            extended = extend(batches) if extend else batches
            return self.task.fit(t, parameters, extended, loss, after, moments)

    def train_on(
        self,
        t: int,
        net: Classifier,
        x: Tensor,
        y: Tensor,
        loss: Loss,
        *,
        times: int,
        name: str,
        moments: Moments | None = None,
    ) -> dict[str, float]:
        """Minimise ``loss`` for ``times`` epochs on samples x [n, C, ...], targets y [n, ...].

        ``name``, k and t name the random streams. ``moments``: as for ``Task.fit``. Return the
        scalars of ``fit``.
        """
        batches = self.task.batches(x, y, name, self.k, t)
        net.train()
        with seeds.scope(self.task.seed, name, self.k, t):
            return self.task.fit(t, net.parameters(), epochs(batches, times), loss, moments=moments)

    def load_state(self, t: int, kind: type[R]) -> R | None:
        """Return the newest state of type ``kind`` of a round < t; None if there is none."""
        return self._store.load_state(t, kind)

    def load_state_of(self, t: int, kind: type[R]) -> R:
        """Return this client's state of round t; raise ``ValueError`` if it is missing."""
        return self._store.load_state_of(t, kind)

    def keep_since(self, oldest: int) -> None:
        """Keep the states that a repetition of round ``oldest`` needs; 0: as usual (``keep``)."""
        self._store.oldest = oldest

    def save_state(self, t: int, state: Records, also: int = 0) -> None:
        """Write ``state`` of round t to disk. ``also``: an older round that must not be deleted."""
        self._store.save_state(t, state, also)
        self._saved = t

    def kept(self, t: int) -> int:
        """Return the round of the state that this process saved, else the newest round < t.

        0: there is no state. State of round t from an earlier attempt does not count, so that a
        repeated round gives the same reply.
        """
        return self._saved or self._store.newest(t - 1)

    @property
    def newest(self) -> int:
        """The newest round with state; 0: there is none."""
        return max(self._store.rounds(), default=0)

    def forget(self) -> None:
        """Delete the saved state of all rounds."""
        self._store.forget()
        self._saved = 0

    def answer(
        self,
        kind: str,
        request: ToClient,
        settings: Mapping[str, Value],
        work: Callable[[], ToServer],
    ) -> ToServer:
        """Return ``work()``, the reply to a message of type ``kind``; record it if it trains.

        Where it saved state, the settings are stored with it.

        ``settings``: the run config. Raises ``ValueError`` as ``Ledger.answer`` does.
        """
        if not kind.startswith("train"):
            return work()
        z = self.config.privacy.local_noise
        reply = self.ledger.answer(kind, request, z, work, decisive(settings))
        if self._saved:
            self._store.describe(settings, self.own)
        return reply

    @cached_property
    def secret(self) -> Secret:
        """Key of this client's noise, created at the first access."""
        self._store.make()
        exists = (self.folder / KEY).exists()
        return Secret.kept(self.folder) if exists else Secret.made(self.folder)

    def score(self, net: Classifier) -> float | None:
        """Return the primary score of ``net`` on the local test samples; None if it has none."""
        result = self.result(net)
        return result and result.score

    def result(self, net: Classifier, *, whole: bool = False) -> Result | None:
        """Return the scores of ``net`` on the local test samples; None if there are none.

        ``whole``: on the whole test set of the task instead.
        """
        if whole:
            return evaluate(net, *self._task_test, self.task)
        if self.n_test == 0:
            return None
        return evaluate(net, *self.test_set, self.task, name=("score", self.k))

    def statistics(self, t: int, net: Classifier, *, by_batch: bool) -> StateDict:
        """Return the statistics of ``net``'s BatchNorm layers on the local training samples.

        The samples are not augmented. ``batchnorm.measure`` defines the means and variances.
        """
        batches = self.task.mixed(*self.train_set, "statistics", self.k, t)
        counted = progress.steps(batches, "batch")
        return measure(net, (images for images, _ in counted), by_batch=by_batch)

    @property
    def n_task_test(self) -> int:
        """Number of samples behind ``whole_test``."""
        return len(self._task_test[1])

    def whole_test(self, net: Classifier) -> dict[str, float]:
        """Return scalars for the journal: the scores of ``net`` on the whole test set."""
        measures = evaluate(net, *self._task_test, self.task).measures
        return {f"test_{name}": value for name, value in measures.items() if value is not None}

    @cached_property
    def _task_test(self) -> tuple[Tensor, Tensor]:
        """The server's test set, or the test part of the client's own data set."""
        data = self._data
        if data.partition == OWN and data.test == "merge":
            return self.test_set
        dataset = for_testing(data, self.clients, self.config.partition_seed)
        return dataset.x_test, dataset.y_test


def upload(net: nn.Module) -> StateDict:
    """Return the network's weights and buffers for a message: on the CPU, contiguous."""
    return {name: value.contiguous() for name, value in tree.snapshot(net).items()}


def _required(node: Mapping[str, Value], key: str) -> int:
    if key not in node:
        raise ValueError(f"node config {key} is missing: give it with --node-config '{key}=…'")
    return int(node[key])
