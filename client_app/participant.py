"""Participant k: its data, its models, its optimisers, its memory.

Everything a client half needs, and nothing of any method.
"""

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from client_app.node import check, limit_memory
from client_app.store import Store
from common import models, progress
from common.data import divide, pool_of
from common.data.dataset import Dataset
from common.data.shares import Share, for_testing, share
from common.exchange.records import Records, StateDict
from common.models.batchnorm import measure
from common.models.classifier import Classifier
from common.settings.config import OWN, Config, Value
from common.techniques.privacy import NAME as KEY
from common.techniques.privacy import Secret
from common.training import device, seeds, tree
from common.training.fit import Loss
from common.training.task import Extend, Task, epochs, evaluate, global_spec

R = TypeVar("R", bound=Records)


@final
class Participant:
    """Client k of ``clients``, as its node and the run configure it.

    ``node``: the node's own settings (``client_app/node.py``), which win over the run's.
    Raises ``ValueError`` for settings that do not make a client.
    """

    def __init__(self, config: Config, node: Mapping[str, Value], experiment: str) -> None:
        self.config = config
        check(node, strict=False)
        self.learnt = str(node.get("learnt-dir", ""))  # from the node alone, never from the run
        self.k = _required(node, "partition-id")
        self.node = node = {**config.node(self.k), **node}
        self.clients = config.run.clients or _required(node, "num-partitions")
        if self.k >= self.clients:
            raise ValueError(f"partition-id = {self.k}, but the federation has {self.clients}")
        self.spec = str(node.get("model", config.fleet[self.k % len(config.fleet)]))
        limit_memory(int(node.get("memory-mb", 0)))
        device.settle(int(node.get("threads", config.run.threads)))
        self.device = device.choose(str(node.get("device", config.run.device)))
        self._data = config.data_of(self.k, node)
        state_dir = Path(
            str(node.get("state-dir", ""))
            or os.environ.get("FEDMOSAIC_STATE_DIR", "")
            or config.run.state_dir
            or Path.home() / ".fedmosaic" / "state"
        )
        self._store = Store(state_dir, experiment, self.k, config.run.keep)
        self.folder = self._store.folder  #: of what it keeps; it need not exist
        self._remembered = 0  #: the round of the state that this work has kept

    @cached_property
    def dataset(self) -> Dataset:
        """What the clients' shares are cut from: the data set without its public part."""
        return pool_of(self._data, self.config.partition_seed)

    @cached_property
    def public(self) -> Tensor:
        """The public images [N, C, H, W], uint8, in the order that all have agreed on."""
        public = divide(self._data, self.config.partition_seed).public
        if public is None:
            raise ValueError("there is no public set: set data.public, public-name or public-dir")
        return public

    @cached_property
    def public_labels(self) -> Tensor | None:
        """Their true classes [N]; None where they are not the task's."""
        return divide(self._data, self.config.partition_seed).labels

    @cached_property
    def _share(self) -> Share:
        return share(self._data, self.k, self.clients, self.config.partition_seed)

    @cached_property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """(x uint8 [n, C, H, W], y int64 [n]) on the client's device."""
        x, y = self._share.train_set
        return x.to(self.device), y.to(self.device)

    @cached_property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """Likewise what the client is tested on."""
        x, y = self._share.test_set
        return x.to(self.device), y.to(self.device)

    @property
    def n(self) -> int:
        """Local training samples n_k."""
        return len(self._share.train)

    @property
    def n_test(self) -> int:
        return len(self._share.test)

    @cached_property
    def counts(self) -> list[int]:
        """Local training samples of each class."""
        y = self.dataset.y[self._share.train]
        return torch.bincount(y, minlength=self.dataset.num_classes).tolist()

    @cached_property
    def task(self) -> Task:
        """What is learnt, on this client's device."""
        return Task.of(self.config, self.dataset, self.device)

    @cached_property
    def global_spec(self) -> str:
        """The server's architecture."""
        return global_spec(self.task)

    def model(
        self, spec: str, weights: StateDict | None = None, *, classes: int = 0, part: str = ""
    ) -> Classifier:
        """A network on the client's device: with ``weights``, else as client k first draws it.

        ``classes``: outputs, 0 for all classes of the task; ``part`` names the draw of a second
        one.
        """
        run = self.config.run
        return self.task.build(
            spec,
            weights,
            name=("init", *([part] if part else []), "client", self.k),
            classes=classes,
            pretrained=weights is None and run.pretrained and models.published(spec),
            first=not part,
        )

    def train(
        self,
        t: int,
        parameters: ParamsT,
        loss: Loss,
        extend: Extend | None = None,
        after: Callable[[], None] | None = None,
        times: int = 0,
    ) -> dict[str, float]:
        """Local training of round t: E epochs of ``loss`` with the configured optimiser.

        ``extend`` turns the batches (x [b, C, H, W] float32 normalised, y [b]) into those that
        ``loss`` takes; ``after`` is called after each step. ``times``: epochs where ``train.steps``
        does not say how many steps; 0: ``train.epochs``.
        """
        train = self.config.train
        one = self.task.batches(*self.train_set, self.k, t, drop_last=train.steps > 0)
        some = progress.steps(one.take(train.steps), "step", train.steps)
        batches = some if train.steps else epochs(one, times or train.epochs)
        with seeds.scope(self.task.seed, "train", self.k, t):
            return self.task.fit(t, parameters, extend(batches) if extend else batches, loss, after)

    def train_on(
        self, t: int, net: Classifier, x: Tensor, y: Tensor, loss: Loss, *, times: int, name: str
    ) -> dict[str, float]:
        """``times`` epochs of ``loss`` on other images x [n, C, H, W] with targets y [n, ...].

        ``name``: of the draws, with k and t.
        """
        batches = self.task.batches(x, y, name, self.k, t)
        net.train()
        with seeds.scope(self.task.seed, name, self.k, t):
            return self.task.fit(t, net.parameters(), epochs(batches, times), loss)

    def load_state(self, t: int, kind: type[R]) -> R | None:
        """What this client kept in the newest round before t."""
        return self._store.load_state(t, kind)

    def load_state_of(self, t: int, kind: type[R]) -> R:
        """What this client kept in round t and no other; ``ValueError`` if it is not there."""
        return self._store.load_state_of(t, kind)

    def save_state(self, t: int, state: Records, also: int = 0) -> None:
        """Keep ``state`` for later rounds, durably; ``also``: a round not to be dropped for it."""
        self._store.save_state(t, state, also)
        self._remembered = t

    def kept(self, t: int) -> int:
        """Return the round of the state kept by this work, or else of the newest one before t.

        0 means that there is none. State of round t from before the round was repeated does not
        count, so that a repeated round gives the same reply.
        """
        return self._remembered or self._store.newest(t - 1)

    @cached_property
    def secret(self) -> Secret:
        """The key of this client's noise, made when it is first asked for."""
        self._store.make()
        kept = (self.folder / KEY).exists()
        return Secret.kept(self.folder) if kept else Secret.made(self.folder)

    def accuracy(self, net: Classifier) -> float | None:
        """Share of the local test samples that ``net`` gets right; None if there are none."""
        if self.n_test == 0:
            return None
        return evaluate(net, *self.test_set, self.task, name=("score", self.k)).accuracy

    def statistics(self, t: int, net: Classifier, *, by_batch: bool) -> StateDict:
        """What ``net``'s BatchNorm layers see of the local training samples, not augmented: means
        and variances as ``batchnorm.measure`` gives them.
        """
        batches = self.task.mixed(*self.train_set, "statistics", self.k, t)
        return measure(net, (images for images, _ in batches), by_batch=by_batch)

    @property
    def n_task_test(self) -> int:
        """Samples of ``test_accuracy``."""
        return len(self._task_test[1])

    def test_accuracy(self, net: Classifier) -> float:
        """Share of the whole test set of the task that ``net`` gets right."""
        return evaluate(net, *self._task_test, self.task).accuracy

    @cached_property
    def _task_test(self) -> tuple[Tensor, Tensor]:
        """The server's test set; of a data set of the client's own, the test part of that."""
        data = self._data
        if data.partition == OWN and data.test == "merge":
            return self.test_set
        found = for_testing(data, self.clients, self.config.partition_seed)
        return found.x_test, found.y_test


def upload(net: nn.Module) -> StateDict:
    """A network's weights and buffers as they travel: on the CPU, contiguous."""
    return {name: value.contiguous() for name, value in tree.snapshot(net).items()}


def _required(node: Mapping[str, Value], key: str) -> int:
    if key not in node:
        raise ValueError(f"node config {key} is missing: give it with --node-config '{key}=…'")
    return int(node[key])
