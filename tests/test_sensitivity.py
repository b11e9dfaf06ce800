"""One client changes the sum before the noise by at most C, whatever the clients send."""

import contextlib
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

from client_app.store import Ledger, NotAnswered
from common.data import load, shares
from common.data.shares import for_testing
from common.exchange.protocol import ClientInfo, ModelReply, ModelRequest
from common.exchange.records import StateDict
from common.journal import Entry, Failure
from common.parse import parse
from common.techniques import privacy as techniques
from common.training.task import Task
from server_app.aggregation import privacy
from server_app.messaging.channel import PlainChannel
from server_app.messaging.membership import Membership
from server_app.messaging.messenger import Messenger
from server_app.method import Client
from server_app.release import withhold
from server_app.storage.run_record import Record
from server_app.storage.status_file import StatusFile
from server_app.strategy import MethodStrategy
from server_app.tracking.sink import Sink
from tests.support.tiny import flat, under

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


def test_a_repeated_round_moves_its_sums_by_what_is_counted(tmp_path: Path) -> None:
    """The k different sums of one round count as one with noise z / √k: together √k C apart."""
    whole = Federation(tmp_path, 5, privacy__mode="central")
    rng, k = np.random.default_rng(3), 2
    for case_number in range(5):
        updates: list[Update] = [directed(rng, whole.size, 10.0) for _ in range(5)]
        attempts = [[u if rng.random() < 0.7 else "lost" for u in updates] for _ in range(6)]
        for attempt in attempts:
            attempt[k] = updates[k]
        t = case_number + 1
        sums = whole.sums(attempts, [t] * len(attempts))
        without = [[*u[:k], "lost", *u[k + 1 :]] for u in attempts]
        counted = privacy.NoisySums.by_round(whole.folder)[t]
        others = whole.sums(without, [100 + t] * len(attempts))
        both = zip(sums, others, strict=True)
        pairs = {a.numpy().tobytes(): float((a - b).norm()) for a, b in both}
        assert counted == len(pairs), "equal sums have equal noise, and count once"
        apart = math.sqrt(sum(distance**2 for distance in pairs.values()))
        assert 0.99 * C <= apart / math.sqrt(counted) <= C * (1 + 1e-6)


SCORING = [
    (test, score_on, partition)
    for test in ("split", "own", "merge")
    for score_on in ("test", "validation")
    for partition in ("iid", "natural", "own")
]


@pytest.mark.parametrize(("test", "score_on", "partition"), SCORING)
def test_the_server_scores_on_no_sample_of_a_client(
    test: str, score_on: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings under which it would are refused; under all others no client's share is read."""
    data = under("data", test=test, score_on=score_on, partition=partition, validation=0.2)
    given = flat(Path("nowhere"), method="fedavg", privacy__mode="central", **data)
    try:
        config = parse(given)
    except ValueError:
        assert score_on == "validation" or (test != "split" and partition != "own")
        return
    monkeypatch.setattr(shares, "share", lambda *_: pytest.fail("a client's share"))
    scored = for_testing(config.data, 4, config.partition_seed)
    assert torch.equal(scored.x_test, load(config.data).x_test)
    assert score_on == "test" and (test == "split" or partition == "own")


def test_what_leaves_with_secret_selection_is_equal_for_all_selections(tmp_path: Path) -> None:
    """Who was selected, how long it took and who did not reply are no part of an entry."""
    settings = {"privacy__mode": "central", "privacy__sampling": "secret"}
    config = parse(flat(tmp_path, method="fedavg", clients=4, per_round=2, **settings))
    late = Failure(k=1, round=1, reason="no reply within 5 s", released="no reply within 5 s")
    lines = set()
    for selected, failures, seconds in (([0, 2], [], 3.5), ([], [], 0.1), ([1], [late], 5.0)):
        entry = Entry(round=1, selected=selected, replied=selected, failures=failures, loss=0.5)
        entry.seconds = {"clients": seconds, "step": 0.1, "total": seconds + 0.2}
        entry.bytes, entry.client_metrics = {"up": len(selected)}, {k: {} for k in selected}
        withhold(entry, config, 4)
        lines.add(entry.line())
    assert len(lines) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_client_draws_noise_once_for_each_round_that_its_ledger_counts(
    seed: int, tmp_path: Path
) -> None:
    """A server asks in any order, under several names, after restarts and with other weights."""
    rng, z, drawn = np.random.default_rng(seed), 2.0, dict[tuple[str, int], set[float]]()
    limit = techniques.gaussian_epsilon(9 * techniques.local_cost(z)) + 1e-9
    for _ in range(200):
        name, t = str(rng.choice(["a", "b", "c"])), int(rng.integers(1, 7))
        w = {"w": torch.tensor([float(rng.integers(3))])}
        request = ModelRequest(w=w).stamped(name, t)

        def work(request: ModelRequest = request) -> ModelReply:
            return ModelReply(w={"w": torch.from_numpy(rng.normal(size=1))}).stamped(request, 0)

        with contextlib.suppress(NotAnswered):
            reply = Ledger(tmp_path, max_epsilon=limit).answer("train", request, z, work)
            assert isinstance(reply, ModelReply)
            drawn.setdefault((name, t), set()).add(float(reply.w["w"]))
    assert {len(numbers) for numbers in drawn.values()} == {1} and 3 <= len(drawn) <= 9
    told = Ledger(tmp_path).check("d", 0, z)
    epsilon = techniques.gaussian_epsilon(len(drawn) * techniques.local_cost(z))
    assert f"{len(drawn)} rounds, with noise: ε = {epsilon:.3g}" in told


@pytest.mark.full
def test_under_local_each_reply_counts_by_itself(tmp_path: Path) -> None:
    assert worst(tmp_path, 60, 7, privacy__mode="local") <= 1.001
