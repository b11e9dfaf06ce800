"""The loop over rounds: census, then select, exchange, step, score, journal, checkpoint."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from flwr.serverapp import Grid

from common import seeds
from common.metrics import fairness
from common.protocol import Score, task
from common.scoring import evaluate
from server_app import checkpoint, summary
from server_app.census import Client, take_census, wait_for_nodes
from server_app.exchange import Failure, exchange
from server_app.journal import Entry, Journal
from server_app.method import Method
from server_app.stopped import Stopped


def run(method: Method[Any], grid: Grid) -> dict[str, Any]:
    """Run ``method`` over ``grid`` as configured and return the summary, which is also on disk.

    Raises ``Stopped`` if the run cannot go on; the checkpoint of the last good round is kept.
    """
    config, folder = method.config, Path(method.config.run.out)
    journal = Journal(folder)
    try:
        done = _resume(method, journal) if config.run.resume else -1
        clients = _census(method, grid, journal, done)
        for t in range(max(done, 0) + 1, config.run.rounds + 1):
            clients = _readmit(method, grid, clients)
            entry = play_round(method, grid, t)
            with _clock(entry["seconds"], "checkpoint"):
                checkpoint.write(folder, entry, method.experiment, config, method.state())
            journal.append(entry)
    except (Stopped, ValueError, FloatingPointError) as error:
        line = str(error).partition("\n")[0]
        if checkpoint.path_in(folder).exists():
            line += f"; the checkpoint is kept, go on with --resume {folder}"
        summary.write(folder, config, journal.entries(), None, error=line)
        raise Stopped(line) from error
    return summary.write(folder, config, journal.entries(), method.ask())


def play_round(method: Method[Any], grid: Grid, t: int) -> Entry:
    """Round t, from selection to score; the entry of the journal."""
    config, seconds = method.config, _Seconds()
    method.traffic.clear()
    with _clock(seconds, "total"):
        with _clock(seconds, "select"):
            selected = method.select(t)
            messages = method.messages(t, selected)
        with _clock(seconds, "clients"):
            replies, failures = exchange(grid, messages, config.run.timeout, t)
            good, refused = method.receive(t, replies)
        failures = sorted(failures + refused, key=lambda failure: failure.k)
        _enough(len(good), len(selected), config.run.min_replies, failures)
        with _clock(seconds, "step"), seeds.scope(config.run.seed, "step", t):
            metrics = method.step(t, good)
        entry: Entry = {"round": t}
        last = t == config.run.rounds
        if last or t % config.score.every == 0:
            with _clock(seconds, "score"):
                entry |= _score(method)
        entry |= {
            "selected": [client.k for client in selected],
            "replied": [client.k for client, _ in good],
            "metrics": metrics,
            "clients": {str(client.k): up.metrics for client, up in good},
        }
        if last or (config.score.clients_every and t % config.score.clients_every == 0):
            with _clock(seconds, "client scores"):
                scored, lost = _client_scores(method, grid, t)
            entry |= scored
            failures = failures + lost
    return entry | {
        "failures": [asdict(failure) for failure in failures],
        "bytes": dict(method.traffic),
        "seconds": seconds,
    }


def _census(method: Method[Any], grid: Grid, journal: Journal, done: int) -> list[Client]:
    """Find the clients; without a checkpoint, write round 0 of the journal."""
    config, data = method.config, method.dataset
    seconds = _Seconds()
    with _clock(seconds, "total"):
        with _clock(seconds, "census"):
            nodes = wait_for_nodes(grid, config)
            if config.run.per_round > len(nodes):
                raise Stopped(
                    f"per-round = {config.run.per_round} is more than the {len(nodes)} clients"
                )
            clients = take_census(
                grid, nodes, config, method.experiment, task(data.shape, data.classes)
            )
            method.begin(clients)
        if done >= 0:
            return clients
        with _clock(seconds, "score"):
            score = _score(method)
    described = [
        {"k": client.k, "model": client.model, "n": client.n, "n_test": client.peer.n_test}
        | {"classes": client.peer.classes, "counts": client.peer.counts}
        for client in clients
    ]
    entry: Entry = {"round": 0, **score, "clients": described, "classes": list(data.classes)}
    entry |= {"failures": [], "bytes": {"down": 0, "up": 0}, "seconds": seconds}
    checkpoint.write(Path(config.run.out), entry, method.experiment, config, method.state())
    journal.append(entry)
    return clients


def _readmit(method: Method[Any], grid: Grid, clients: list[Client]) -> list[Client]:
    """Clients whose node came back under another id are found again, by asking who is new."""
    known, online = {client.node for client in clients}, set(grid.get_node_ids())
    strangers = sorted(online - known)
    if not strangers or known <= online:
        return clients
    lost = {client.k: client for client in clients if client.node not in online}
    from flwr.app import Message

    from common.protocol import Hello, Peer

    config = method.config
    hello = Hello(experiment=method.experiment, clients=len(clients)).pack()
    asked = {
        i: Message(hello, node, "query.hello", ttl=config.run.timeout)
        for i, node in enumerate(strangers)
    }
    replies, _ = exchange(grid, asked, config.run.timeout, 0)
    for i, reply in replies.items():
        try:
            peer = Peer.unpack(reply.content)
        except ValueError:
            continue
        if peer.k in lost and peer == lost[peer.k].peer:
            lost[peer.k] = Client(peer, strangers[i])
    renewed = [lost.get(client.k, client) for client in clients]
    method.clients = renewed
    return renewed


def _resume(method: Method[Any], journal: Journal) -> int:
    """Take up the state of the checkpoint; the round it was written after."""
    config = method.config
    saved = checkpoint.read(Path(config.run.out), config)
    try:
        state = method.State(**saved.state)
    except ValueError as error:
        raise ValueError(f"the checkpoint's state is not that of {config.run.method}") from error
    method.restore(state)
    method.experiment = saved.experiment
    journal.rewind(json.loads(saved.entry))
    if saved.t >= config.run.rounds:
        raise ValueError(f"the run is complete: rounds = {config.run.rounds}, all of them done")
    return saved.t


def _score(method: Method[Any]) -> Entry:
    """Accuracy and loss of the server's model on the test set."""
    net, data = method.model(), method.dataset
    if net is None:
        return {"accuracy": None, "loss": None}
    result = evaluate(net, data.x_test, data.y_test, data, method.config, bn=method.eval_bn)
    return {"accuracy": result.accuracy, "loss": result.loss}


def _client_scores(method: Method[Any], grid: Grid, t: int) -> tuple[Entry, list[Failure]]:
    timeout = method.config.run.timeout
    replies, lost = exchange(grid, method.questions(t), timeout, t)
    scores, refused = method.scores(t, replies)
    entry: Entry = {"scores": [_plain(score) for score in scores]}
    tested = [s for s in scores if s.n > 0 and s.accuracy_global is not None]
    if tested:
        accuracies = [s.accuracy_global or 0.0 for s in tested]
        entry["fairness"] = dict(fairness(accuracies, [s.n for s in tested]))
    return entry, lost + refused


def _plain(score: Score) -> Entry:
    return score.model_dump(include={"k", "n", "accuracy", "accuracy_global"})


def _enough(good: int, selected: int, fraction: float, failures: list[Failure]) -> None:
    needed = math.ceil(fraction * selected - 1e-9)
    if good >= max(needed, 1):
        return
    first = failures[0]
    raise Stopped(
        f"round {first.round}: {good} of {selected} replies are good, min-replies = "
        f"{fraction:g} needs {needed}; client {first.k}: {first.reason}"
    )


@final
class _Seconds(dict[str, float]):
    """Wall-clock seconds by phase."""


@contextmanager
def _clock(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = round(seconds.get(phase, 0.0) + time.perf_counter() - start, 6)
