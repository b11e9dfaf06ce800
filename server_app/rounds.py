"""The loop over rounds: census, then select, exchange, step, score, journal, checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.serverapp import Grid
from pydantic import ValidationError

from common.config import Config
from common.errors import LONGEST, first_line, report
from common.files import Damaged, write_atomically
from common.flops import counting
from common.flower.rpc import over_grpc
from common.journal import Cost, Entry, Failure, Member, Memory, Undone
from common.peak import following
from common.toml import to_toml
from server_app.combine.groups import unprotected
from server_app.keep import checkpoint, summary
from server_app.keep.checkpoint import Checkpoint
from server_app.keep.journal import Journal, clock, note_flops, note_memory
from server_app.keep.places import to_relative
from server_app.memory import sending, sweep
from server_app.privacy import withhold
from server_app.stopped import Absurd, Again, Stopped
from server_app.talk.ask import ask
from server_app.talk.census import take_census, wait_for_nodes
from server_app.talk.readmission import Readmission, check_bound

if TYPE_CHECKING:
    from server_app.strategy import MethodStrategy

log = logging.getLogger("flwr.fedmosaic")


def run(strategy: MethodStrategy, grid: Grid) -> None:
    """Run the strategy's method over ``grid`` as configured; its summary is left on disk.

    Raises ``Stopped`` if the run cannot go on; the checkpoint of the last good round is kept. What
    cannot be resumed, or is complete, stays as it is.
    """
    config = strategy.method.config
    folder = Path(config.run.out)
    saved = _checkpoint(config) if config.run.resume else None
    with strategy.sink:
        _play(strategy, grid, saved)
    if not config.run.runtime:  # our commands make it themselves
        log.info("completed; for its report: fedmosaic report %s", folder)


def _play(strategy: MethodStrategy, grid: Grid, saved: Checkpoint | None) -> None:
    """Everything that leaves a summary, also if the run cannot go on; then raises ``Stopped``."""
    config = strategy.method.config
    folder = Path(config.run.out)
    journal = Journal(folder)
    try:
        if saved is not None:
            _resume(strategy, journal, saved)
        _census(strategy, grid, journal, saved)
        past = journal.entries() if saved else [strategy.entry]
        strategy.scorer.first = past[0].loss
        del past  # many clients are much text
        readmission = Readmission(strategy.post, grid)
        entry = Entry.read(saved.entry) if saved else Entry(round=0)
        while not _over(entry, config):
            t = entry.round + 1
            strategy.clients, strangers = readmission.renew(t, strategy.clients)
            strategy.before = entry
            entry = play_round(strategy, grid, t)
            entry.failures = strangers + entry.failures
            if again := [each for each in strategy.undone if each.round == t]:
                entry.undone = again
                out = [(k, each.why) for each in again for k in each.suspects]
                entry.failures = [_left_out(t, k, why) for k, why in out] + entry.failures
            withhold(entry, config, len(strategy.clients))
            with clock(entry, "checkpoint"):
                _keep(strategy)
            journal.append(entry)
            _tell(entry, config.run.rounds)
        summary.write(folder, config, journal.entries(), strategy.scorer.shown.ask())
    except Exception as error:
        if isinstance(error, Absurd) and _undo(strategy, error):
            raise Again from error
        line = report(error, folder)
        if isinstance(error, OSError):
            line = f"{error.filename or folder} cannot be used: {error.strerror or line}"
        if "--resume" not in line and checkpoint.path_in(folder).exists():
            line += f"; the checkpoint is kept, go on with --resume {folder}"
        with suppress(OSError, ValueError):  # on a full disk the line is all there is
            summary.write(folder, config, journal.entries(), None, error=line)
        raise Stopped(line) from error


def _left_out(t: int, k: int, why: str) -> Failure:
    reason = f"left out from now on, its numbers were far out when the round was undone: {why}"
    return Failure(k=k, round=t, reason=first_line(reason, LONGEST))


def _undo(strategy: MethodStrategy, absurd: Absurd) -> bool:
    """Whether the round was undone: once, if somebody is suspect and the state before is kept.

    Never under differential privacy: the model after it may have been sent to clients, and ε counts
    each round once.
    """
    out, gone = absurd.suspects, strategy.method.excluded
    left = [client for client in strategy.clients if client.k not in {*out, *gone}]
    private = strategy.method.config.privacy.on
    again = any(each.round == absurd.t for each in strategy.undone)
    if private or again or not out or not left:
        return False
    undone = Undone(round=absurd.t, why=str(absurd), suspects=out)
    try:
        checkpoint.undo(Path(strategy.method.config.run.out), undone)
    except ValueError as error:
        log.warning("round %d cannot be undone: %s", absurd.t, error)
        return False
    who = ", ".join(str(k) for k in out)
    log.warning("round %d is undone and repeated without client %s: %s", absurd.t, who, absurd)
    return True


def _over(entry: Entry, config: Config) -> bool:
    """Whether no round follows the one of ``entry``; the census is none."""
    reached = entry.round > 0 and config.score.ends(entry.accuracy)
    return reached or entry.round >= config.run.rounds


def _tell(entry: Entry, rounds: int) -> None:
    """A line of Flower's log, for those who follow with ``flwr run --stream``."""
    told = ["not scored" if entry.accuracy is None else f"accuracy {entry.accuracy:.4f}"]
    told += [f"{len(entry.failures)} failures"] if entry.failures else []
    told += [] if entry.reached is None else [f"the run ends: target {entry.reached:g} is reached"]
    log.info("round %d/%d: %s", entry.round, rounds, ", ".join(told))


def play_round(strategy: MethodStrategy, grid: Grid, t: int) -> Entry:
    """Round t, from selection to score; the entry of the journal."""
    method, post, score = strategy.method, strategy.post, strategy.method.config.score
    entry = strategy.entry = Entry(round=t)
    post.traffic.clear()
    last = t == method.config.run.rounds
    with clock(entry, "total"):
        with clock(entry, "select"), _measured(strategy):
            messages = iter(strategy.configure_train(t))  # kept by nobody else
        _exchanged(strategy, grid, messages, strategy.aggregate_train, "clients")
        with _measured(strategy):
            seconds = list(strategy.configure_second(t))
        if seconds:
            _exchanged(strategy, grid, seconds, strategy.aggregate_second, "clients")
        if (counted := method.numbers(strategy.ups)) is not None:
            sent = post.traffic.get("down", 0) + post.traffic.get("up", 0)
            entry.cost = Cost(numbers=counted, bytes=sent)
        scored = last or t % score.every == 0
        asks = last or (score.clients_every > 0 and t % score.clients_every == 0)
        asks = asks and not strategy.private
        if score.bn == "recalibrated" and (scored or asks):
            anew = strategy.recalibrate(strategy.trusted if last else strategy.ups.clients)
            for _ in range(score.passes if anew.measuring else 0):
                measures = strategy.configure_statistics(t)
                _exchanged(strategy, grid, measures, strategy.aggregate_statistics, "statistics")
        if scored:
            with clock(entry, "score"):
                strategy.scorer.score(entry)
        strategy.scorer.check_sound(entry)
        method.rest()
        sweep(post.traffic.get("up", 0))
        if score.ends(entry.accuracy):
            entry.reached, asks = score.target, not strategy.private
        if asks:
            with clock(entry, "client scores"):
                asked = strategy.configure_evaluate(t)
            _exchanged(strategy, grid, asked, strategy.aggregate_evaluate, "client scores")
    entry.bytes = dict(post.traffic)
    strategy.good = []  # the replies' files are gone with them
    sweep(post.traffic.get("down", 0) + post.traffic.get("up", 0))
    return entry


def _exchanged(
    strategy: MethodStrategy,
    grid: Grid,
    messages: Iterable[Message],
    aggregate: Callable[[int, Iterable[Message]], object],
    phase: str,
) -> None:
    """Send messages to clients and hand the good replies to ``aggregate``."""
    entry, timeout = strategy.entry, strategy.method.config.run.timeout
    strategy.method.rest()
    by_node = {client.node: client.k for client in strategy.clients}
    with clock(entry, phase):
        sent = {by_node[message.metadata.dst_node_id]: message for message in messages}
        with sending(over_grpc(grid)):
            replies, lost = ask(grid, strategy.post, sent, timeout, entry.round)
    strategy.failed(lost)
    del messages, sent  # in packed form they take as much memory again
    sweep(strategy.post.traffic.get("down", 0))
    with _measured(strategy):
        aggregate(entry.round, _handed_over(replies))
    sweep(strategy.post.traffic.get("up", 0))


@contextmanager
def _measured(strategy: MethodStrategy) -> Iterator[None]:
    """Add what the block costs to what the round costs the server, where the run asks for that."""
    run = strategy.method.config.run
    with counting(run.flops) as spent, following(run.memory) as held:
        yield
    if run.flops:
        note_flops(strategy.entry, "server", spent.total)
    if run.memory:
        note_memory(strategy.entry, Memory(server=held.most))


def _handed_over(replies: dict[int, Message]) -> Iterator[Message]:
    """The replies, each of which whoever takes it holds alone."""
    for k in list(replies):
        yield replies.pop(k)


def _keep(strategy: MethodStrategy) -> None:
    """Write the checkpoint after the round at hand."""
    method, nodes = strategy.method, {client.k: client.node for client in strategy.clients}
    post, state = strategy.post, method.state()
    checkpoint.write(
        *(strategy.entry, post.experiment, method.config, state),
        *(nodes, post.kept, strategy.undone),
    )


def _census(
    strategy: MethodStrategy, grid: Grid, journal: Journal, saved: Checkpoint | None
) -> None:
    """Find the clients; without a checkpoint, write round 0 of the journal."""
    method, post = strategy.method, strategy.post
    run, entry = method.config.run, strategy.entry
    with clock(entry, "total"):
        with clock(entry, "census"):
            nodes = wait_for_nodes(grid, method.config)
            if run.per_round > len(nodes):
                raise Stopped(f"per-round = {run.per_round} is more than the {len(nodes)} clients")
            strategy.clients = take_census(grid, nodes, post, method.task)
            check_bound(strategy.clients, saved.nodes if saved else {}, run.rebind)
            method.begin(strategy.clients)
        _keep_settings(strategy)
        if saved is not None:
            return
        with clock(entry, "score"):
            strategy.scorer.score(entry)
    method.rest()
    entry.clients = [
        Member(
            k=client.k,
            model=client.model,
            n=client.n,
            n_test=client.peer.n_test,
            parameters=method.task.parameters(client.model),
            classes=client.peer.classes,
            counts=client.peer.counts,
        )
        for client in strategy.clients
    ]
    entry.classes = list(method.task.classes)
    if said := unprotected(method):
        log.warning(said)
        entry.notes = [said]
    if missing := strategy.scorer.uncovered():
        entry.uncovered = missing
    entry.failures, entry.bytes = [], {"down": 0, "up": 0}
    withhold(entry, method.config, len(strategy.clients))
    _keep(strategy)
    journal.append(entry)


def _keep_settings(strategy: MethodStrategy) -> None:
    """Write ``config.toml``: the run config as it came, with what was still open in it."""
    out = Path(strategy.method.config.run.out)
    settings = {
        **to_relative(strategy.settings, out),
        "experiment": strategy.post.experiment,
        "clients": len(strategy.clients),
        "resume": False,
        "from-round": -1,
    }
    write_atomically(out / "config.toml", to_toml(settings).encode())


def _checkpoint(config: Config) -> Checkpoint:
    """The checkpoint to go on from; raises ``Stopped`` if there is none, or all rounds are done."""
    folder = Path(config.run.out)
    try:
        saved = checkpoint.read(folder, config)
        summary.check_incomplete(folder, config)
    except ValueError as error:
        raise Stopped(str(error)) from error
    return saved


def _resume(strategy: MethodStrategy, journal: Journal, saved: Checkpoint) -> None:
    """Take up the state of the checkpoint."""
    method, name = strategy.method, strategy.method.config.run.method
    try:
        method.restore(saved.state)
    except ValidationError as error:
        raise ValueError(f"the checkpoint's state is not that of {name}") from error
    strategy.take_up([Undone.model_validate_json(each) for each in saved.undone])
    strategy.post.experiment, strategy.post.kept = saved.experiment, dict(saved.kept)
    strategy.post.after = saved.t
    last, folder = Entry.read(saved.entry), journal.path.parent
    try:
        journal.before(last.round)
    except Damaged as error:
        raise Stopped(f"{error}; {checkpoint.advice(folder, len(journal.entries()))}") from error
    if strategy.method.config.run.from_round >= 0:
        checkpoint.go_back(folder, last.round)
    journal.rewind(last)
