"""Load a finished run, or run one further round of it outside its folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from flwr.app import Message

import client_app.methods
from client_app.methods import AnyHandler
from client_app.participant import Participant
from common.data.dataset import Dataset
from common.data.shares import for_testing
from common.exchange import model_file, tree
from common.exchange.protocol import Reply
from common.exchange.records import StateDict
from common.models.classifier import Classifier, Pooled, Projected, Split
from common.parse import parse
from common.settings.config import Config
from common.settings.section import Value
from common.techniques.widths import check_widths
from common.training import device
from common.training.task import Task, global_spec
from deploy.run.loopback import Loopback
from deploy.settings import load_run
from server_app.messaging.census import take_census
from server_app.messaging.channel import PlainChannel
from server_app.messaging.exchange import exchange
from server_app.messaging.messenger import Messenger
from server_app.method import Client
from server_app.methods import AnyMethod, make
from server_app.storage import checkpoint
from server_app.storage.checkpoint import Checkpoint

MODEL = "model.safetensors"  #: the server's model after the run
CHECKPOINT = checkpoint.path_in(Path()).name  #: the server's state, beside those of the clients


@final
@dataclass(frozen=True)
class Finished:
    """A finished run. ``flat`` is the run config of the server and all clients;
    ``config.run.out`` is the folder."""

    folder: Path
    flat: dict[str, Value]
    config: Config

    @cached_property
    def saved(self) -> Checkpoint:
        """The server's state at the end of the run."""
        return checkpoint.load(self.folder, self.config.run.from_round)

    def method(self, task: Task) -> AnyMethod:
        """Return the method's server half at the end of the run, on the task's device."""
        method = make(task, global_spec(task))
        method.restore(self.saved.state)
        return method

    def client(self, k: int) -> AnyHandler:
        """Return the method's half of client k on the CPU, with its client state after the run."""
        node: dict[str, Value] = {"partition-id": k, "device": "cpu"}
        return client_app.methods.make(Participant(self.config, node, self.config.run.experiment))

    def dataset(self) -> Dataset:
        """Return the data set on which the run's models are scored."""
        config = self.config
        return for_testing(config.data, config.run.clients, config.partition_seed)

    def dataset_of_classes(self) -> Dataset:
        """Return ``dataset``; raise ``ValueError``, one line, without a class for each sample."""
        dataset = self.dataset()
        if not dataset.goal().one_each:
            raise ValueError(
                f"{self.folder} is a run on {dataset.objective}; this command needs one class for "
                "each sample"
            )
        return dataset

    def task(self, dataset: Dataset) -> Task:
        """Return the run's task, on the CPU.

        Raises ``ValueError``, one line, if the base of adapters is another one than in the run;
        only a checkpoint tells.
        """
        task = Task.of(self.config, dataset, torch.device("cpu"))
        if self.config.adapted and (self.folder / CHECKPOINT).exists():
            then, now = self.saved.task, task.fingerprint
            if then not in ("", now):
                raise ValueError(f"{self.folder} is a run of the task {then}, which is now {now}")
        return task

    def server_model(self, task: Task, *, trained: bool = True, file: str = MODEL) -> Classifier:
        """Return the server's model in a ``file`` of the run, or as initialised, in eval mode.

        Raises ``ValueError`` with the path of a file of weights that cannot be read, or that is
        not one network of the global architecture: a method may save a part of a network, several
        networks or prototypes.
        """
        path, spec = self.folder / file, global_spec(task)
        if self.config.average.across == "width":
            spec = check_widths({own: task.expected(own) for own in self.config.brought})
        weights = model_file.load(path) if trained else None
        if weights is not None:
            tree.check_like(weights, task.expected(spec), f"{path}, as one network {spec},")
        return task.build(spec, weights, name=("init", "global")).eval()


def finished(folder: Path, needed: str = MODEL) -> Finished:
    """Return the run in ``folder``.

    Raises ``ValueError``, one line, if config.toml or the file ``needed`` is missing.
    """
    others = {
        MODEL: ", or its method none on the server",
        CHECKPOINT: "; it has no checkpoint and no clients' states, because tables, sweeps and "
        "boards delete both; use fedmosaic run",
    }
    for name in ("config.toml", needed):
        if not (folder / name).exists():
            why = f"it has no {name}{others.get(name, '')}"
            raise ValueError(f"{folder} holds no finished run: {why}")
    flat = {**load_run(folder, private=True), "out": str(folder)}
    if (state := folder / "state").is_dir():  # the default place of the clients' states
        flat["state-dir"] = str(state)
    return Finished(folder, flat, parse(flat))


@final
@dataclass(frozen=True)
class Further:
    """The round after the last one: the messages to chosen clients and their replies."""

    flat: dict[str, Value]
    """The run config of the clients."""
    dataset: Dataset
    method: AnyMethod
    messages: dict[int, Message]
    replies: list[tuple[Client, Reply]]

    def networks(self) -> list[tuple[Client, Split]]:
        """Return each client's uploaded network in eval mode, without a projection or pooling.

        Raises ``ValueError`` if the method uploads no networks, or a network has no stages.
        """
        networks = []
        for client, reply in self.replies:
            built = self.method.build(client.architecture, _own(client, reply, self.method)).eval()
            net = built.base if isinstance(built, Projected | Pooled) else built
            if not isinstance(net, Split):
                raise ValueError(f"client {client.k}: model {client.architecture!r} has no stages")
            networks.append((client, net))
        return networks


@contextmanager
def further_round(folder: Path, clients: int, workers: int) -> Iterator[Further]:
    """Run the next round of the finished run in ``folder`` with its first ``clients`` clients.

    Raises ``ValueError``, one line, without a run or a checkpoint, and for a client that fails.
    """
    run = finished(folder, CHECKPOINT)
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as temporary:
        state = Path(str(run.flat["state-dir"]))
        if state.exists():
            shutil.copytree(state, Path(temporary) / "state")
        flat = {**run.flat, "state-dir": str(Path(temporary) / "state")}
        yield _run_round(Finished(folder, flat, parse(flat)), clients, workers)


def begin(
    run: Finished, grid: Loopback, messenger: Messenger, task: Task
) -> tuple[AnyMethod, list[Client]]:
    """Return the method's server half at the end of the run, and the clients of a new census."""
    method = run.method(task)
    clients = take_census(grid, messenger, task, run.config.run.clients).clients
    method.begin(clients)
    return method, clients


def _run_round(run: Finished, size: int, workers: int) -> Further:
    config, dataset, t = run.config, run.dataset(), run.saved.t + 1
    flat = {**run.flat, "rounds": t}  # clients refuse rounds after the last
    device.settle(config.run.threads)
    task = Task.of(config, dataset, device.choose(config.run.device))
    messenger = Messenger(PlainChannel(config, run.saved.experiment))
    with Loopback(config.run.clients, flat, workers=workers) as grid:
        method, clients = begin(run, grid, messenger, task)
        request = method.requests(t)
        sent = ((c, request(c) if callable(request) else request) for c in clients[:size])
        messages = messenger.make_messages(t, "train", sent)
        replies, failures = exchange(grid, dict(messages), config.run.timeout, t)
        uploads, refused = messenger.open(
            t, replies.values(), method.reply_type, clients, method.check
        )
    for failure in [*failures, *refused]:
        raise ValueError(f"client {failure.k} failed in the further round: {failure.reason}")
    return Further(flat, dataset, method, messages, uploads)


def _own(client: Client, reply: Reply, method: AnyMethod) -> StateDict:
    """Return the weights of the client's own architecture in its upload."""
    expected = method.task.expected(client.architecture)
    for name in ("local", "w"):
        state = getattr(reply, name, None)
        if isinstance(state, dict) and state.keys() == expected.keys():
            return {key: torch.as_tensor(value) for key, value in state.items()}
    raise ValueError(f"method {method.config.run.method!r} uploads no network of client {client.k}")
