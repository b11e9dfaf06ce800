"""Measure what training costs a client of a method, in a short run on random samples.

A trial plays the run's method with its server and clients in this process: two rounds of two local
steps, so that the state of an optimiser and what clients receive from round 2 on count. Random
samples have the form of the run's data; all other repetitions of the settings are reduced to one.
"""

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, final

import torch

from common import seeds
from common.data import DATASETS, Source, divide, source
from common.data import kinds as kinds_
from common.data.dataset import Dataset
from common.data.kinds import Shape
from common.data.shares import for_testing
from common.keys import general_table
from common.measures import ObjectiveName
from common.parse import defaults
from common.progress import Reporter, reporting
from common.settings.config import NATURAL, Config, entries
from common.settings.section import Value
from common.training import costs
from deploy.run.loopback import Loopback, play
from server_app.stopped import REMEDY, Stopped
from server_app.storage.journal import Journal

REPEATED = re.compile(r"(^|[.-])(epochs|steps|batches|iterations|warm-up)$")
"""Settings that repeat work without changing what is in memory at once."""
ROUNDS = STEPS = 2
SPARE = 8  #: training samples of a client beyond a batch
TESTED = 8  #: test samples of the server
NAME, DEVICE = "trial", "server-gpu"  #: names of the data set and of the profile of a trial
FEWEST = 3  #: clients of a trial, if the run has so many: a median needs them
KEPT = ("data.augment", "data.standardize", "data.test-fraction", "score.bn")


@final
@dataclass(frozen=True)
class Form:
    """Form of a run's data: a sample's shape, the classes, and the number of public samples."""

    shape: Shape
    classes: tuple[str, ...]
    of_bytes: bool
    public: int = 0
    objective: ObjectiveName = "classes"

    @classmethod
    def of(cls, config: Config, dataset: Dataset) -> Self:
        """Return the form of the data set of a run on this machine."""
        public = None
        if config.data.public or config.data.elsewhere:
            public = divide(config.data, config.partition_seed).public
        of_bytes = dataset.x.dtype == torch.uint8
        n = 0 if public is None else len(public)
        return cls(dataset.shape, dataset.classes, of_bytes, n, dataset.objective)

    @classmethod
    def anywhere(cls, config: Config) -> Self:
        """Return the form of a run's data, which may be on other machines.

        Raises ``ValueError``, one line, if they are, and the data set alone does not tell it.
        """
        try:
            data = for_testing(config.data, config.run.clients, config.partition_seed)
            return cls.of(config, data)
        except ValueError as error:
            known = source(config.data.name)
            changed = config.data.image_size or config.data.public or config.data.elsewhere
            if known.shape is None or known.classes is None or changed:
                raise ValueError(
                    f"clock.fit = {config.clock.fit!r} needs the form of the data here: {error}"
                ) from None
            classes = tuple(map(str, range(known.classes)))
            return cls(known.shape, classes, of_bytes=len(known.shape) == 3)  # only images are

    def random(self, owners: int, train: int, test_fraction: float) -> Dataset:
        """Return a data set of this form in which each owner has ``train`` samples to train on.

        ``test_fraction``: share of an owner's samples that is for its test.
        """
        classes = len(self.classes)
        n = max(math.ceil(train / (1 - test_fraction)), -(-classes // owners))
        rng = seeds.stream(0, NAME)

        def drawn(count: int) -> torch.Tensor:
            if self.of_bytes:
                return torch.randint(256, (count, *self.shape), generator=rng, dtype=torch.uint8)
            return kinds_.random(count, self.shape, rng)

        def labels(count: int) -> torch.Tensor:
            if kinds_.every_of(self.shape):
                return drawn(count)
            of = torch.arange(count)
            if self.objective == "classes":
                return of % classes
            return (of[:, None] % (classes + 1) == torch.arange(classes)).float()

        total, vocab = owners * n, kinds_.vocab_of(self.shape)
        channels = 0 if vocab else self.shape[0]  # tokens have no statistics
        return Dataset(
            NAME,
            self.classes,
            x=drawn(total),
            y=labels(total),
            x_test=drawn(TESTED),
            y_test=labels(TESTED),
            mean=(0.5,) * channels,
            std=(0.25,) * channels,
            x_public=drawn(self.public) if self.public else None,
            y_public=labels(self.public) if self.public else None,
            owner=torch.arange(total) // n,
            objective=self.objective,
            vocab=vocab,
            token_bytes=(0,) * (vocab > 0) + (1,) * (vocab - 1),
        )


class Kind(NamedTuple):
    """What a client trains: its architecture, and ``node.K.size`` if it has one."""

    architecture: str
    size: float | None = None


class Cost(NamedTuple):
    """What a client of a kind needs in a round of ``STEPS`` full batches."""

    memory: float  #: largest number of bytes in tensors at once
    operations: float  #: floating-point operations of a step
    moved: tuple[int, int]  #: bytes of arrays to and from the client
    trained: str  #: architecture that it trains; the global one with methods that share it


def measure(
    flat: Mapping[str, Value], form: Form, kinds: Sequence[Kind], batch: int
) -> dict[Kind, Cost]:
    """Return the costs of the ``kinds`` of clients of the run ``flat`` at a batch size.

    Raises ``ValueError``, one line, if the run does not work with them.
    """
    clients = max(len(kinds), min(int(flat["clients"]), FEWEST))
    members = [kinds[k % len(kinds)] for k in range(clients)]
    with tempfile.TemporaryDirectory(prefix="fedmosaic-trial-") as name:
        folder = Path(name)
        settings = _settings(flat, form, members, folder) | {"train.batch-size": batch}
        data = form.random(clients, batch + SPARE, float(flat["data.test-fraction"]))
        with _registered(data), reporting(Reporter(lambda line: None)):
            try:
                play(settings, Loopback(clients, settings, workers=0))
            except Stopped as error:
                why = REMEDY.sub("", str(error))
                raise ValueError(
                    f"clock.fit = {flat['clock.fit']!r} cannot measure the clients: {why}"
                ) from None
        census, *rounds = Journal(folder).entries()
    trained = {member.k: member.model for member in census.clients}
    found: dict[Kind, Cost] = {}
    for k, kind in enumerate(kinds):
        memory = max(entry.memory.clients.get(k, 0.0) for entry in rounds if entry.memory)
        operations = max(e.client_metrics.get(k, {}).get(costs.FLOPS, 0.0) for e in rounds) / STEPS
        moved = max((e.clock.jobs.get(k, (0, 0))[:2] for e in rounds if e.clock), key=sum)
        found[kind] = Cost(memory, operations, moved, trained[k])
    return found


def _settings(
    flat: Mapping[str, Value], form: Form, members: Sequence[Kind], folder: Path
) -> dict[str, Value]:
    """Return the run config of a trial with a client of each of ``members``."""
    usual = defaults()
    reset = (
        *("data.", "clock.", "score.", "select."),
        *("membership", "weights", "pretrained", "track", "callbacks", "labels", "name"),
        *("min-clients", "leave-after", "per-round", "resume", "from-round", "privacy.mode"),
    )
    settings = {
        key: usual[key] if key.startswith(reset) and key not in KEPT else value
        for key, value in flat.items()
        if not general_table(key.rpartition(".")[0])
    }
    for key, value in settings.items():
        if type(value) is int and value > 1 and REPEATED.search(key):
            settings[key] = 1
    fleet = entries(str(flat["fleet"]))
    for k, kind in enumerate(members):
        if kind.architecture != fleet[k % len(fleet)]:
            settings[f"node.{k}.model"] = kind.architecture
        if kind.size is not None:
            settings[f"node.{k}.size"] = kind.size
    return settings | {
        **{"clients": len(members), "rounds": min(int(flat["rounds"]), ROUNDS), "sanity": 0.0},
        **{"train.steps": STEPS, "score.collapse": "off", "profiles": DEVICE, "device": "cpu"},
        **{"flops": True, "memory": True, "runtime": "loopback", "experiment": NAME},
        **{"data.name": NAME, "data.dir": str(folder), "data.partition": NATURAL},
        **{"data.public": 1.0 if form.public else 0.0},
        **{"out": str(folder), "state-dir": str(folder / "state")},
    }


@contextmanager
def _registered(dataset: Dataset) -> Iterator[None]:
    """Make the data set of a trial known by its name, in this process alone."""
    DATASETS[NAME] = Source(lambda _: dataset, "random samples")
    try:
        yield
    finally:
        del DATASETS[NAME]
