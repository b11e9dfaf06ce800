"""The server of a private run without its clients' processes, and updates that try its bounds."""

import math
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from torch import Tensor

from common.data.shares import for_testing
from common.exchange.protocol import ClientInfo, ModelReply, ModelRequest
from common.exchange.records import StateDict
from common.journal import Entry
from common.parse import parse
from common.techniques import privacy as techniques
from common.training.task import Task
from server_app.aggregation import privacy
from server_app.messaging.channel import PlainChannel
from server_app.messaging.membership import Membership
from server_app.messaging.messenger import Messenger
from server_app.method import Client
from server_app.storage.run_record import Record
from server_app.storage.status_file import StatusFile
from server_app.strategy import MethodStrategy
from server_app.tracking.sink import Sink
from tests.support.tiny import flat

C, MOST, FULL = 0.5, 13, pytest.mark.full
Update = Tensor | str
"""What a client sends: a change of weights [P], ``lost``, ``failed``, ``empty`` or ``short``."""
LOSSES = {
    "lost": (3, "Error: Message Unavailable"),
    "failed": (2, "FloatingPointError: training diverged: mean loss nan over 3 steps"),
}


class Replying:
    """Grid whose node k + 1 replies with ``reply(k, request)``, or an error without a payload."""

    def __init__(self, reply: Callable[[int, ModelRequest], ModelReply | str]) -> None:
        self.reply, self.replies = reply, dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return list(range(1, MOST + 1))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent, names = list(messages), list[str]()
        request = ModelRequest.unpack(sent[0].content)  # the same for all clients
        for message in sent:
            names.append(f"message {len(self.replies)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            payload = self.reply(message.metadata.dst_node_id - 1, request)
            content = Error(*LOSSES[payload]) if isinstance(payload, str) else payload.pack()
            self.replies[names[-1]] = Message(content, reply_to=message)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in list(names)]


class Federation:
    """Server of ``clients`` clients under [privacy], without their processes."""

    def __init__(self, folder: Path, clients: int, **more: Any) -> None:
        given = {"method": "fedavg", "fleet": "mlp@0.25", "privacy__clip": C, **more}
        settings = flat(folder / str(clients), clients=clients, **given)
        config = parse(settings)
        dataset = for_testing(config.data, clients, config.partition_seed)
        task = Task.of(config, dataset, torch.device("cpu"))
        self.folder = Path(config.run.out)
        record = Record(config, Sink(Path(config.run.out), "", {}), settings)
        messenger = Messenger(PlainChannel(config, "test"))
        self.strategy = MethodStrategy(task, dataset, messenger, record)
        info: dict[str, Any] = {"n": 10, "n_test": 0, "model": "mlp@0.25", "classes": [0]}
        info |= {"counts": None, "task": "", "public": "", "version": ""}
        peers = [Client(ClientInfo(k=k, **info), k + 1) for k in range(clients)]
        grid = Replying(lambda *_: "lost")
        self.strategy.membership = Membership(messenger, grid, task)
        self.strategy.status = StatusFile(record.folder, grid, lambda: {})
        self.strategy.membership.members = dict(enumerate(peers))
        self.strategy.method.begin(peers)
        self.start: StateDict = dict(self.strategy.method.w)
        self.names = techniques.averaged(self.start, set(self.start), buffers=True)
        self.size = techniques.flattened(self.start, self.names).numel()

    def sums(self, rounds: list[list[Update]], ts: Iterable[int] = count(1)) -> list[Tensor]:
        """Return the sum before the noise of every round of clients' updates.

        ``ts``: number of each round; a number twice is a round that a resumed run repeats.
        """
        strategy, found = self.strategy, list[Tensor]()

        def noised(update: Tensor, *_: Any) -> Tensor:
            found.append(update.clone())
            return torch.zeros_like(update)  # so that both federations go on from the same weights

        def moved(start: StateDict, names: list[str], step: Tensor) -> StateDict:
            if strategy.config.privacy.mode == "local":
                found.append(step * len(strategy.clients))
            return dict(start)

        strategy.method.w, strategy.entry = dict(self.start), Entry(round=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(privacy, "noised", noised)
            patch.setattr(privacy, "moved", moved)
            for t, updates in zip(ts, rounds, strict=False):
                strategy.grid = Replying(lambda k, request, u=updates: self.reply(k, request, u[k]))
                strategy.before, strategy.entry = strategy.entry, Entry(round=t)
                strategy.exchange(strategy.configure_train, strategy.aggregate_train, "clients")
        assert len(found) == len(rounds), "every round has a sum"
        return found

    def reply(self, k: int, request: ModelRequest, update: Update) -> ModelReply | str:
        if isinstance(update, str) and update in LOSSES:
            return update
        w = dict(request.w)
        name = self.names[0]
        if isinstance(update, Tensor):
            w = techniques.moved(w, self.names, update)
        elif update == "empty":
            w = {}
        else:
            w[name] = w[name].reshape(-1)[1:]
        return ModelReply(w=w, metrics={"loss": 1.0}).stamped(request, k)


def directed(rng: np.random.Generator, size: int, norm: float, random: float = 0.3) -> Tensor:
    """Return a change of this norm, in the same direction, or in another one with ``random``."""
    numbers = torch.ones(size)
    numbers = torch.from_numpy(rng.normal(size=size)) if rng.random() < random else numbers
    return numbers.double() * (norm / float(numbers.norm()))


def case(rng: np.random.Generator, size: int, clients: int) -> list[Update]:
    """Return the adversarial updates of one round."""
    crafted = rng.random() < 0.5  # a test against the median refuses half of such updates or none
    levels = 10 ** rng.uniform(-3, 2) * np.array([1.0, 1000.0])
    updates: list[Update] = []
    for _ in range(clients):
        kind = rng.random()
        if crafted and kind < 0.8:
            updates.append(directed(rng, size, float(rng.choice(levels)), random=0.0))
        elif kind < 0.5:
            updates.append(directed(rng, size, 10 ** rng.uniform(-6, 30)))
        elif kind < 0.65:
            broken = directed(rng, size, 1.0)
            broken[rng.integers(size)] = rng.choice([math.nan, math.inf, 3e38, 1e7])
            updates.append(broken)
        else:
            updates.append(str(rng.choice(["lost", "failed", "empty", "short"])))
    return updates
