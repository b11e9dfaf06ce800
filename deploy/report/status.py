"""State of a run and of its clients, from the files in the run's folder.

A private run withholds which clients replied (``server_app/release.py``), so that ``answered`` and
``missed`` are unknown there.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import final

from common.journal import Member, present
from common.measures import ACCURACY, MEASURES
from deploy.report.read import Run, total
from deploy.report.table import NONE, Table, clean, duration, in_flight, number
from server_app.storage.lock import held
from server_app.storage.status_file import NodeStatus, ServerStatus

RECENT = 5  #: rounds whose mean duration gives the estimate


@final
@dataclass(frozen=True)
class ClientStatus:
    """Client k. ``state``: member, left, or not joined.

    ``node``: the name of its node, else the id; ``last_seen``: Unix time at which the server last
    saw the node connected, None: never. ``last_reply``: the last round with a valid reply;
    ``answered`` and ``missed``: numbers of rounds in which the client was selected, or of its jobs
    in asynchronous rounds; None in a private run.
    """

    k: int
    node: str
    state: str
    model: str
    samples: int
    tags: list[str]
    last_seen: float | None
    last_reply: int | None
    answered: int | None
    missed: int | None
    version: str


@final
@dataclass(frozen=True)
class Status:
    """A run. ``state``: running, completed, stopped or interrupted; ``left``: estimated seconds.

    ``score`` and ``best``: the last and the best primary score, of the measure with this name;
    ``accuracy``: the score if it is one. ``phase``: what the server does now; empty if the run is
    not running. ``buffer``: staleness and jobs in flight of the last asynchronous round
    (``Arrivals.as_dict``); None: a synchronous run.
    """

    run: str
    state: str
    error: str
    phase: str
    round: int
    rounds: int | None
    accuracy: float | None
    score: float | None
    best: float | None
    measure: str
    left: float | None
    buffer: Mapping[str, float] | None
    clients: list[ClientStatus]


def roster(run: Run) -> int:
    """Return the number of clients of the roster."""
    size = run.config.get("clients")
    return size if isinstance(size, int) else len(run.members)


def of(run: Run) -> Status:
    """Return the status of a run and of every client of its roster."""
    running, headline, server = held(run.path), run.headline(), ServerStatus.read(run.path)
    state = "running" if running else "completed" if run.finished else "interrupted"
    error = "" if running or run.summary is None else run.summary.error or ""
    left, arrivals = None, run.over("buffer")
    recent = [total(entry) for entry in run.entries if entry.round and entry.seconds][-RECENT:]
    if running and recent and run.rounds is not None:
        left = fmean(recent) * (run.rounds - run.done)
    return Status(
        run=run.path.resolve().name,
        state="stopped" if error else state,
        error=error,
        phase=f"{clean(server.phase)} of round {server.round}" if running else "",
        round=run.done,
        rounds=run.rounds,
        accuracy=headline["final"] if run.measure is ACCURACY else None,
        score=headline["final"],
        best=headline["best"],
        measure=run.measure.name,
        left=left,
        buffer=arrivals and arrivals.as_dict(),
        clients=_clients(run, server),
    )


def _clients(run: Run, server: ServerStatus) -> list[ClientStatus]:
    members, here = {member.k: member for member in run.members}, present(run.entries)
    failed = Counter(failure.k for failure in run.over("failures"))
    clients = []
    for k in range(roster(run)):
        member = members.get(k, Member(k=k, model=""))
        node = server.nodes.get(k, NodeStatus(node=0))
        selected = [entry for entry in run.entries if k in entry.selected]
        rounds = run.entries if run.buffered else selected  # a job may outlast its round
        replied = [entry.round for entry in rounds if k in entry.replied]
        missed = failed[k] if run.buffered else len(selected) - len(replied)
        status = ClientStatus(
            k=k,
            node=clean(node.name) or str(node.node or ""),
            state="member" if k in here else "left" if k in members else "not joined",
            model=member.model,
            samples=member.n,
            tags=member.tags,
            last_seen=node.seen or None,
            last_reply=None if run.private else max(replied, default=0),
            answered=None if run.private else len(replied),
            missed=None if run.private else missed,
            version=clean(node.version),
        )
        clients.append(status)
    return clients


def line(status: Status) -> str:
    """Return the status of the run in one line."""
    rounds = "" if status.rounds is None else f" of {status.rounds}"
    texts = [f"{status.run}: {status.state}", f"round {status.round}{rounds}"]
    texts += [status.phase] if status.phase else []
    if status.score is not None:
        measure = MEASURES[status.measure]
        texts.append(f"{measure.title} {measure.text(status.score)}")
        texts[-1] += f", best {measure.text(status.best)}"
    texts += [in_flight(status.buffer)] if status.buffer else []
    if status.left is not None:
        texts.append(f"about {duration(status.left)} left")
    members = sum(client.state == "member" for client in status.clients)
    texts.append(f"{members} of {len(status.clients)} clients take part")
    return "; ".join([*texts, *([status.error] if status.error else [])])


def table(status: Status) -> Table:
    """Return a table with a row for each client."""
    header = ("client", "node", "state", "model", "tags", "version", "samples", "last seen")
    rows = []
    for client in status.clients:
        texts = (client.node, client.state, client.model, ",".join(client.tags), client.version)
        seen = None if client.last_seen is None else _ago(client.last_seen)
        numbers = (client.samples, seen, client.last_reply, client.answered, client.missed)
        rows.append([str(client.k), *(text or NONE for text in texts), *map(number, numbers)])
    return Table((*header, "last reply", "answered", "missed"), rows, align="rlllllr")


def _ago(moment: float) -> str:
    """Return how long ago a Unix time was."""
    seconds = max(time.time() - moment, 0.0)
    return f"{duration(seconds) if seconds >= 60 else f'{seconds:.0f} s'} ago"
