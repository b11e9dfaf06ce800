"""The loop over rounds: census, then select, exchange, step, score, journal, checkpoint."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, final

from flwr.serverapp import Grid

from common import seeds
from common.metrics import fairness
from common.models.classifier import Classifier
from common.protocol import Score, task
from common.scoring import evaluate
from server_app.coverage import covered_accuracy, uncovered
from server_app.keep import checkpoint, summary
from server_app.keep.journal import Entry, Journal
from server_app.method import Method
from server_app.soundness import check_sound
from server_app.stopped import Stopped
from server_app.talk.census import take_census, wait_for_nodes
from server_app.talk.exchange import Failure, exchange
from server_app.talk.readmission import Readmission, check_bound

log = logging.getLogger("flwr.fedmosaic")


def run(method: Method[Any], grid: Grid) -> dict[str, Any]:
    """Run ``method`` over ``grid`` as configured and return the summary, which is also on disk.

    Raises ``Stopped`` if the run cannot go on; the checkpoint of the last good round is kept.
    """
    config, folder = method.config, Path(method.config.run.out)
    journal = Journal(folder)
    try:
        done, nodes = _resume(method, journal) if config.run.resume else (-1, {})
        _census(method, grid, journal, done, nodes)
        readmission = Readmission(method, grid)
        for t in range(max(done, 0) + 1, config.run.rounds + 1):
            strangers = readmission.renew(t)
            entry = play_round(method, grid, t)
            entry["failures"] = [asdict(failure) for failure in strangers] + entry["failures"]
            with _clock(entry["seconds"], "checkpoint"):
                _keep(method, entry)
            journal.append(entry)
            _tell(entry, config.run.rounds)
        return summary.write(folder, config, journal.entries(), method.ask())
    except (Stopped, ValueError, FloatingPointError, OSError) as error:
        line = str(error).partition("\n")[0]
        if isinstance(error, OSError):
            line = f"{error.filename or folder} cannot be used: {error.strerror or line}"
        if checkpoint.path_in(folder).exists():
            line += f"; the checkpoint is kept, go on with --resume {folder}"
        with suppress(OSError):  # on a full disk the line is all there is
            summary.write(folder, config, journal.entries(), None, error=line)
        raise Stopped(line) from error


def _tell(entry: Entry, rounds: int) -> None:
    """A line of Flower's log, for those who follow with ``flwr run --stream``."""
    accuracy, lost = entry.get("accuracy"), len(entry["failures"])
    told = "not scored" if accuracy is None else f"accuracy {accuracy:.4f}"
    log.info(
        "round %d/%d: %s%s", entry["round"], rounds, told, f", {lost} failures" if lost else ""
    )


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
            messages, replies = {}, {}  # in packed form they take as much memory again
        failures = sorted(failures + refused, key=lambda failure: failure.k)
        _enough(len(good), len(selected), config.run.min_replies, failures)
        with _clock(seconds, "step"), seeds.scope(config.run.seed, "step", t):
            metrics = method.step(t, good)
        entry: Entry = {"round": t}
        if messages := method.second(t, good):
            with _clock(seconds, "clients"):
                replies, lost = exchange(grid, messages, config.run.timeout, t)
                added, refused = method.receive_second(t, replies)
            entry |= added
            failures = failures + lost + refused
        if (counted := method.numbers(good)) is not None:
            sent = method.traffic.get("down", 0) + method.traffic.get("up", 0)
            entry["cost"] = {"numbers": counted, "bytes": sent}
        last = t == config.run.rounds
        if last or t % config.score.every == 0:
            with _clock(seconds, "score"):
                entry |= _score(method)
        check_sound(method, t, entry, good)
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


def _keep(method: Method[Any], entry: Entry) -> None:
    """Write the checkpoint after the round of ``entry``."""
    folder, nodes = Path(method.config.run.out), {c.k: c.node for c in method.clients}
    state = method.state()
    checkpoint.write(folder, entry, method.experiment, method.config, state, nodes)


def _census(
    method: Method[Any], grid: Grid, journal: Journal, done: int, bound: dict[int, int]
) -> None:
    """Find the clients; without a checkpoint, write round 0 of the journal.

    ``bound``: the nodes of a checkpoint's clients.
    """
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
            check_bound(clients, bound, config.run.rebind)
            method.begin(clients)
        if done >= 0:
            return
        with _clock(seconds, "score"):
            score = _score(method)
    described = [
        {"k": client.k, "model": client.model, "n": client.n, "n_test": client.peer.n_test}
        | {"parameters": method.parameters(client.model)}
        | {"classes": client.peer.classes, "counts": client.peer.counts}
        for client in clients
    ]
    entry: Entry = {"round": 0, **score, "clients": described, "classes": list(data.classes)}
    if missing := uncovered(method):
        entry["uncovered"] = missing
    entry |= {"failures": [], "bytes": {"down": 0, "up": 0}, "seconds": seconds}
    _keep(method, entry)
    journal.append(entry)


def _resume(method: Method[Any], journal: Journal) -> tuple[int, dict[int, int]]:
    """Take up the state of the checkpoint; the round it was written after, and the nodes then."""
    config = method.config
    saved = checkpoint.read(Path(config.run.out), config)
    try:
        state = method.keeps(**saved.state)
    except ValueError as error:
        raise ValueError(f"the checkpoint's state is not that of {config.run.method}") from error
    method.restore(state)
    method.experiment = saved.experiment
    journal.rewind(json.loads(saved.entry))
    if saved.t >= config.run.rounds and summary.complete(Path(config.run.out), saved.t):
        raise ValueError(f"the run is complete: rounds = {config.run.rounds}, all of them done")
    return saved.t, saved.nodes


def _score(method: Method[Any]) -> Entry:
    """Accuracy and loss of the server's model on the test set."""
    if networks := method.networks():
        return _score_each(method, networks)
    net, data = method.model(), method.dataset
    if net is None:
        return {"accuracy": None, "loss": None}
    result = evaluate(net, data.x_test, data.y_test, data, method.config, bn=method.eval_bn)
    entry: Entry = {"accuracy": result.accuracy, "loss": result.loss}
    covered = covered_accuracy(method, net)
    if covered is not None:
        entry["accuracy_covered"] = covered
    further = method.further_models()
    if further:
        entry["accuracies"] = {method.model_name: result.accuracy}
    for name, weights in further.items():
        net = method.build(method.global_spec, weights)
        scored = evaluate(net, data.x_test, data.y_test, data, method.config, bn=method.eval_bn)
        entry["accuracies"][name] = scored.accuracy
    return entry


def _score_each(method: Method[Any], networks: dict[str, Classifier]) -> Entry:
    """The mean over the architectures' models, and each one's accuracy."""
    data, bn = method.dataset, method.eval_bn
    results = {
        spec: evaluate(net, data.x_test, data.y_test, data, method.config, bn=bn)
        for spec, net in networks.items()
    }
    entry: Entry = {
        "accuracy": fmean(result.accuracy for result in results.values()),
        "loss": fmean(result.loss for result in results.values()),
        "accuracies": {spec: result.accuracy for spec, result in results.items()},
    }
    covered = [covered_accuracy(method, net) for net in networks.values()]
    known = [value for value in covered if value is not None]
    return entry | ({"accuracy_covered": fmean(known)} if known else {})


def _client_scores(method: Method[Any], grid: Grid, t: int) -> tuple[Entry, list[Failure]]:
    timeout = method.config.run.timeout
    replies, lost = exchange(grid, method.questions(t), timeout, t)
    scores, refused = method.scores(t, replies)
    entry: Entry = {"scores": [_plain(score) for score in scores]}
    tested = [score for score in scores if score.n > 0]
    if tested:
        entry["fairness"] = _fairness(tested, method.model_name)
    return entry, lost + refused


def _fairness(tested: list[Score], model_name: str) -> Entry:
    """AMP, FM and WLP: of the global model, or of the clients' own where there is none; then of
    every model by its name."""
    sizes = [score.n for score in tested]
    named: dict[str, list[float | None]] = {
        model_name: [score.accuracy_global for score in tested],
        "own": [score.accuracy for score in tested],
        **{name: [s.accuracies.get(name) for s in tested] for name in tested[0].accuracies},
    }
    by_name: Entry = {
        name: dict(fairness([value for value in values if value is not None], sizes))
        for name, values in named.items()
        if None not in values
    }
    main = by_name.get(model_name) or by_name.get("own") or {}
    if by_name.get("own") == by_name.get(model_name):
        by_name.pop("own", None)
    return {**main, **by_name}


def _plain(score: Score) -> Entry:
    plain = score.model_dump(include={"k", "n", "accuracy", "accuracy_global"})
    return plain | ({"accuracies": score.accuracies} if score.accuracies else {})


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
