"""The events of asynchronous rounds, by a table computed by hand.

Five clients with f_k(w) = ½ (w − a_k)² and a = 0, 4, 8, 12, 16 take one step of η = 0.1 from the
version that they were sent. Their jobs take 2, 3, 4, 7 and 11 seconds; three are in flight. The
client that is idle for the longest gets the next job. The job of client 2 at version 3 is lost, and
the server notices that after 6 seconds. Two instants have two events each.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from flwr.app import Message, RecordDict

from common.exchange import tree
from common.exchange.protocol import ClientInfo, ModelReply, ModelRequest
from common.journal import Arrivals, Entry
from common.settings.buffer import Buffer
from common.settings.options import Average
from server_app.aggregation.calibration import Cache
from server_app.buffered import rounds
from server_app.buffered.by_clock import ByClock
from server_app.buffered.jobs import InFlight
from server_app.clock.job import SECOND, Job
from server_app.messaging.exchange import Inbox
from server_app.method import Client, Method
from server_app.run import Run

A = (0.0, 4.0, 8.0, 12.0, 16.0)
TIMES = (2, 3, 4, 7, 11)
RATE, START = 0.1, 10.0


def number(w: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([w], dtype=torch.float64)}


class Quadratic:
    """Server half: w, and the mean of the clients' models."""

    reply_type = ModelReply
    roster_size = len(A)

    def __init__(self) -> None:
        self.w, self.sent, self.discounts = number(START), dict[int, Any](), dict[int, float]()
        self.selection = SimpleNamespace(
            allows=lambda info: True, draw=lambda infos, rng, t, size: {i.k for i in infos[:size]}
        )
        private, limit = SimpleNamespace(on=False), SimpleNamespace(sanity=0.0)
        self.config = SimpleNamespace(privacy=private, run=limit)

        self.cache: Cache | None = None
        self.clients = [Client(info(k), k + 1) for k in range(len(A))]

    def requests(self, t: int) -> ModelRequest:
        return ModelRequest(w=self.w)

    def check(self, client: Client, reply: ModelReply) -> None: ...

    def change(self, *_: object) -> list[Any]:
        return []

    def current(self, client: Client, t: int) -> dict[str, torch.Tensor]:
        return self.w

    rebased = Method.rebased


class Wire:
    """Messenger and channel whose clients reply at once."""

    experiment = "table"

    def __init__(self) -> None:
        self.channel, self.moved = self, dict.fromkeys(range(len(A)), (0, 0))
        self.replies: dict[int, ModelReply] = {}

    def inbox(self, grid: object) -> Any:
        return SimpleNamespace(jobs={}, seconds={}, pause=lambda: None, forget=lambda k: None)

    def make_messages(self, t: int, kind: str, payloads: list[Any]) -> dict[int, ModelReply]:
        replies = {}
        for client, request in payloads:
            w = float(request.w["w"])
            trained = number(w - RATE * (w - A[client.k]))
            replies[client.k] = ModelReply(experiment="table", t=t, k=client.k, w=trained)
        return replies

    def post(self, inbox: Inbox, messages: dict[int, ModelReply], t: int) -> None:
        self.replies |= messages

    def arrived(self, inbox: Inbox) -> tuple[dict[int, Message], list[Any]]:
        return {k: Message(RecordDict(), k + 1, "train") for k in self.replies}, []

    def waiting(self) -> None: ...

    def receive(self, k: int) -> None: ...

    def open(self, t: int, replies: Any, kind: Any, clients: Any, check: Any) -> Any:
        (client,) = clients
        reply = self.replies.pop(client.k)
        assert reply.t == t
        return [(client, reply)], []


class Clock:
    """Clock with the times of the table, and the loss of one job."""

    on = True

    def __init__(self, lost: tuple[int, int] | None) -> None:
        self.now = self.end = 0
        self.lost, self.late, self.jobs = lost, list[int](), dict[int, Job]()
        self.predictor = SimpleNamespace(newest={})
        self.devices = SimpleNamespace(trace=lambda k: None)
        self.version: dict[int, int] = {}

    def restart(self, name: object, start: int) -> None:
        self.end = start

    def loss_of(self, client: Client, *name: object) -> int | None:
        return 0 if self.lost == (client.k, self.t - 1) else None

    def end_of(self, client: Client, job: Job, start: int, *name: object) -> tuple[int, bool]:
        return start + TIMES[client.k] * SECOND, True

    def spend(self, client: Client, job: Job, *name: object) -> None: ...

    def predicted_job(self, client: Client) -> Job:
        return Job()

    def job_of(self, *_: object) -> Job:
        return Job(steps=1)


def info(k: int) -> ClientInfo:
    return ClientInfo.model_construct(k=k, n=1, model="number")


def play(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, buffer: Buffer, steps: int, lost: Any = None
) -> tuple[list[float], list[Arrivals], list[float]]:
    """Return w and the journal's arrivals after each step, and H under ``buffer.cache``."""
    monkeypatch.setattr(rounds, "over_grpc", lambda grid: False)
    clients = {k: Client(info(k), k + 1) for k in range(len(A))}
    method, clock = Quadratic(), Clock(lost)
    method.cache = Cache(tmp_path, 1) if buffer.cache else None
    run = SimpleNamespace(
        config=SimpleNamespace(
            buffer=buffer,
            run=SimpleNamespace(
                method="fedavg", per_round=0, flops=False, memory=False, sanity=0.0, keep=1
            ),
            clock=SimpleNamespace(notice=6.0),
            average=Average(weights="uniform"),
        ),
        task=SimpleNamespace(seed=1),
        record=SimpleNamespace(folder=tmp_path),
        method=method,
        clock=clock,
        messenger=Wire(),
        membership=SimpleNamespace(known=clients, members=clients, missed=frozenset()),
        traffic={},
        trusted=lambda: [*clients.values()],
        clients=[*clients.values()],
        private=False,
        grid=None,
    )
    buffered = ByClock(cast("Run", run), lambda t: None)
    course, entries, totals = [], [], []
    for t in range(1, steps + 1):
        run.entry, clock.t = Entry(round=t), t
        buffered.collect(t)
        replies = [reply.w for _, reply in buffered.replies()]
        method.w = tree.mean(replies, [1] * len(replies))
        clock.now = clock.end
        course.append(float(method.w["w"]))
        assert run.entry.buffer is not None
        entries.append(run.entry.buffer)
        if method.cache is not None:
            h: Any = method.cache.state({}).overall["sum"]
            totals.append(float(h["w"]) / len(A))
    return course, entries, totals


def test_fedbuff_has_the_steps_of_the_table(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer(size=2, concurrency=3)
    course, entries, _ = play(tmp_path, monkeypatch, buffer, 5, lost=(2, 3))
    assert course == pytest.approx([9.2, 8.66928932, 8.49355988, 7.84420389, 7.62199370], abs=1e-8)
    assert [e.times for e in entries] == [[2, 3], [4, 6], [9, 9], [11, 14], [14, 16]]
    assert [e.arrived for e in entries] == [
        [(0, 0), (1, 0)],
        [(2, 0), (0, 1)],
        [(1, 2), (3, 0)],
        [(0, 3), (1, 3)],
        [(4, 1), (0, 4)],
    ]
    assert [e.staleness for e in entries] == [[0, 0], [1, 0], [0, 2], [0, 0], [3, 0]]
    sent = [[(k, v) for kind, k, v in e.events if kind == "sent"] for e in entries]
    assert sent == [
        [(0, 0), (1, 0), (2, 0), (3, 0)],
        [(4, 1), (0, 1)],
        [(1, 2)],
        [(0, 3), (2, 3), (1, 3)],
        [(3, 4), (0, 4), (1, 4)],
    ]


def test_fedasync_has_the_steps_of_the_table(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = Buffer(size=1, concurrency=3, mixing=0.6, staleness="poly:0.5")
    course, entries, _ = play(tmp_path, monkeypatch, buffer, 6)
    wanted = [9.4, 9.4, 9.53856406, 8.96625022, 8.66827521, 8.93438289]
    assert course == pytest.approx(wanted, abs=1e-8)
    assert [e.times for e in entries] == [[2], [3], [4], [6], [9], [9]]
    assert [e.staleness for e in entries] == [[0], [1], [2], [0], [0], [4]]


def test_ca2fl_has_the_steps_of_the_table(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same events: each step adds H, and of an update its difference from the one before."""
    buffer = Buffer(size=2, concurrency=3, staleness="constant", cache=True)
    course, _, totals = play(tmp_path, monkeypatch, buffer, 5, lost=(2, 3))
    assert course == pytest.approx([9.2, 8.82, 8.635, 8.3921, 8.478845], abs=1e-9)
    assert totals == pytest.approx([-0.32, -0.344, -0.2804, -0.2654, -0.124542], abs=1e-9)


def test_a_restored_run_drops_the_jobs_of_suspects(tmp_path: Any) -> None:
    run = SimpleNamespace(
        config=SimpleNamespace(buffer=Buffer(), run=SimpleNamespace(method="fedavg", keep=1)),
        record=SimpleNamespace(folder=tmp_path),
        method=Quadratic(),
    )
    buffered = ByClock(cast("Run", run), lambda t: None)
    jobs = [InFlight(number=i, k=i, t=4, start=0, due=9) for i in range(3)]
    buffered.jobs, buffered.number = {job.k: job for job in jobs}, 3
    buffered.idle = {3: 7}
    other = ByClock(cast("Run", run), lambda t: None)
    other.restore(buffered.state(), frozenset({1}))
    assert other.jobs == {0: jobs[0], 2: jobs[2]}
    assert (other.number, other.idle) == (3, {3: 7})
