"""One client changes the sum before the noise by at most C, whatever the clients send."""

import math
from collections.abc import Callable, Iterable
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

pytest.importorskip("dp_accounting")

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

    def sums(self, rounds: list[list[Update]]) -> list[Tensor]:
        """Return the sum before the noise of every round of clients' updates."""
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
            for t, updates in enumerate(rounds, start=1):
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


def worst(folder: Path, cases: int, most: int = MOST, **more: Any) -> float:
    """Return the largest ratio of a difference of two neighbours' sums to its bound.

    The bound is C, or for ``local``, where clients clip, the norm of the client's own update.
    """
    federations = {n: Federation(folder, n, **more) for n in range(2, most + 1)}
    rng, ratio = np.random.default_rng(7), 0.0
    central = more.get("privacy__mode") == "central"
    for i in range(cases):
        n = int(rng.integers(3, most + 1))
        whole, other = federations[n], federations[n - 1]
        rounds = [case(rng, whole.size, n) for _ in range(1 + i % 2)]
        k = int(rng.integers(n))
        without = [[*updates[:k], *updates[k + 1 :]] for updates in rounds]
        if i % 3 == 0:  # the client exists and sends nothing
            without, other = [[*u[:k], "lost", *u[k + 1 :]] for u in rounds], whole
        pairs = zip(whole.sums(rounds), other.sums(without), rounds, strict=True)
        for a, b, updates in pairs:
            own = updates[k]
            limit = C if central else float(own.norm()) if isinstance(own, Tensor) else 0.0
            if math.isfinite(limit):
                rounding = 1e-6 * float(a.abs().max())  # of float32, if clients clip
                apart = max(float((a - b).norm()) - rounding * (not central), 0.0)
                ratio = max(ratio, apart / limit if apart else 0.0)
    return ratio


@pytest.mark.parametrize(
    ("cases", "most"),
    [pytest.param(10, 7, id="10 cases"), pytest.param(1000, MOST, id="1000 cases", marks=FULL)],
)
def test_one_client_moves_the_sum_at_most_by_clip(cases: int, most: int, tmp_path: Path) -> None:
    ratio = worst(tmp_path, cases, most, privacy__mode="central")
    assert 0.9 < ratio <= 1 + 1e-6, "some clients use the bound, none exceeds it"


@pytest.mark.full
def test_under_local_each_reply_counts_by_itself(tmp_path: Path) -> None:
    assert worst(tmp_path, 60, 7, privacy__mode="local") <= 1.001
