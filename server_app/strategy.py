"""The rounds of a run: select, send, collect, check, aggregate, second exchange, statistics, score,
record.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common import progress
from common.data.dataset import Dataset
from common.exchange.protocol import (
    FineTunedScoreReply,
    Reply,
    Request,
    ScoreReply,
    StatisticsReply,
)
from common.flower.rpc import over_grpc
from common.journal import Cost, Entry, Event, Failure, Undone
from common.training import seeds
from common.training.task import Task, global_spec
from server_app import costs
from server_app.memory import free_memory, sending
from server_app.messaging import census, sanity
from server_app.messaging.membership import Membership
from server_app.messaging.messenger import Messenger
from server_app.messaging.readmission import check_bound
from server_app.method import Client, Replies, mean_metrics
from server_app.methods import make
from server_app.scoring import drift
from server_app.scoring.collapse import collapse
from server_app.scoring.recalibrate import Recalibration
from server_app.scoring.score import Scorer, score_check, score_requests
from server_app.stopped import CollapsedRound, DivergedRound, Stopped
from server_app.storage import resume
from server_app.storage.checkpoint import Checkpoint
from server_app.storage.journal import clock
from server_app.storage.run_record import Record
from server_app.storage.status_file import StatusFile

log = logging.getLogger("flwr.fedmosaic")


@final
class MethodStrategy(Strategy):
    """Strategy that plays the rounds of a run with a method's hooks, and records each round.

    It derives from Flower's ``Strategy`` and not from ``FedAvg``. ``FedAvg`` sends all clients the
    same payload, demands equal reply keys, turns integer buffers into floats, and averages without
    the failed clients.
    """

    def __init__(self, task: Task, dataset: Dataset, messenger: Messenger, record: Record) -> None:
        self.task, self.dataset, self.messenger, self.record = task, dataset, messenger, record
        self.config, self.traffic = task.config, messenger.channel.traffic
        self.private = self.config.privacy.on  #: no numbers of single clients in the journal
        self.entry = self.before = Entry(round=0)  #: journal entry of this round, and the previous
        self.sent: dict[int, Request] = {}  #: requests of this round, by client
        self.good: list[tuple[Client, Reply]] = []  #: valid replies of this round
        self.undone: list[Undone] = []
        self.accuracies: list[float] = []  #: of the scored rounds so far
        self.best = Entry(round=0)  #: entry with the best score so far
        self.recalibration: Recalibration | None = None
        self._make()

    def _make(self) -> None:
        """Create the method in its initial state."""
        self.method = make(self.task, global_spec(self.task))
        self.scorer = Scorer(self.method, self.dataset)

    # The run.

    def start(self, grid: Grid, *_: object, **__: object) -> Result:
        """Play all rounds; rounds, timeouts and hyper-parameters come from the run config.

        The results are in the run's folder, so the ``Result`` is empty. Raises ``Stopped`` if the
        run cannot continue; the checkpoint of the last valid round is kept.
        """
        self.grid, config, record = grid, self.config, self.record
        self.membership = Membership(self.messenger, grid, self.task)
        self.status = StatusFile(record.folder, grid, lambda: self.membership.known)
        self.messenger.channel.waiting = self.status.renew
        saved = resume.newest(config) if config.run.resume else None
        with record.opened():
            self._begin(saved)
            while not self._over():
                self.play_round(self.entry.round + 1)
            record.add_summary(self.scorer.scored.weights_to_score())
        if not config.run.runtime:  # our commands write the report themselves
            log.info("completed; for its report: fedmosaic report %s", record.folder)
        return Result()

    def play_round(self, t: int) -> None:
        """Play round t and record it; if the model diverges, undo the round.

        ``configure_…`` selects clients and makes messages, ``_exchange`` sends them and collects
        the replies, ``aggregate_…`` checks and uses the replies.
        """
        events, refused_nodes = self._renew(t)
        self.before, self.entry = self.entry, self.scorer.begin(Entry(round=t))
        if events:
            self.entry.events = events
        self.method.excluded = resume.excluded(self.undone, t)
        self.traffic.clear()
        try:
            with clock(self.entry, "total"), progress.block(f"round {t}"):
                self._exchange(self.configure_train, self.aggregate_train, "clients")
                if self.method.second_reply_type is not None:
                    self._exchange(self.configure_second, self.aggregate_second, "clients")
                if (numbers := self.method.numbers(self.replies)) is not None:
                    self.entry.cost = Cost(numbers=numbers, bytes=self._moved)
                self._measure_statistics()
                self._score()
                self._notice_collapse()
                self._score_at_clients()
                self._notice_end()
                if self.entry.end and not self._due(self.config.score.every):
                    self._score()  # the clients' scores end the run
        except DivergedRound as diverged:
            self._go_back(diverged)
        else:
            self._record(refused_nodes)

    @property
    def clients(self) -> list[Client]:
        """The members with their current nodes, in order of k."""
        return self.membership.clients

    def _renew(self, t: int) -> tuple[list[Event], list[Failure]]:
        """Update the members before round t; return the events, and failures for the journal."""
        method, membership = self.method, self.membership
        self.status.enter(t, "membership")
        events, refused_nodes = membership.renew(t, method.admit)
        method.clients, method.roster = self.clients, membership.roster
        for event in events:
            if event.kind == "left":
                method.left(event.k)
            else:
                method.joined(membership.known[event.k], lost=event.kind == "replaced")
        if events:
            method.check_enough(self.clients)
        return events, refused_nodes

    def _exchange(
        self,
        configure: Callable[[int], Iterable[Message]],
        aggregate: Callable[[int, Iterable[Message]], object],
        phase: str,
    ) -> None:
        """Send the messages if there are any, collect the replies, and aggregate them."""
        entry, channel, run = self.entry, self.messenger.channel, self.config.run
        ks = {client.node: client.k for client in self.clients}
        sent = {ks[message.metadata.dst_node_id]: message for message in configure(entry.round)}
        if not sent and not self.private:  # with privacy, noise is added without any client too
            return
        self.method.release_memory()
        with self._phase(phase), sending(over_grpc(self.grid)):
            replies, lost = channel.exchange(self.grid, sent, run.timeout, entry.round)
        entry.failures = entry.failures + lost
        del sent  # frees the packed payloads, which are as large as the replies
        free_memory(self.traffic.get("down", 0))
        with costs.of_server(entry, run):
            aggregate(entry.round, _consumed(replies))
        free_memory(self.traffic.get("up", 0))

    # Training.

    def configure_train(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Select the clients of round t, and return their training messages."""
        t, method, entry = server_round, self.method, self.entry
        with clock(entry, "select"), costs.of_server(entry, self.config.run):
            selected = method.select(t)
            entry.selected = [client.k for client in selected]
            request, missed = method.request(t), self.membership.missed
            asked = [client for client in selected if client.k not in missed]
            self.sent = {c.k: request(c) if callable(request) else request for c in asked}
            if silent := sorted(missed & {*entry.selected}):
                why = "no reply, by membership"
                entry.failures = [Failure(k=k, round=t, reason=why, kind="late") for k in silent]
            payloads = [(client, self.sent[client.k]) for client in asked]
            return self.messenger.make_messages(t, "train", payloads).values()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open and check the replies, and take the method's step with the valid ones.

        Raises ``Stopped`` if fewer are valid than ``min-replies`` requires, and ``DivergedRound``
        if this round or the one before diverged.
        """
        t, entry, method = server_round, self.entry, self.method
        with clock(entry, "clients"):
            self._check(t, replies)
        sanity.check_before(entry, self.before, self._architectures)
        self._check_enough(len(self.good), len(entry.selected), "replies", entry.failures)
        uploads = self.replies
        entry.replied = [client.k for client in uploads.clients]
        with self._phase("step"), seeds.scope(self.task.seed, "step", t):
            try:
                metrics = method.step(t, uploads)
            except FloatingPointError as error:
                raise DivergedRound(f"round {t}: {error}", t) from error
        entry.metrics = metrics if self.private else {**mean_metrics(uploads), **metrics}
        entry.client_metrics = {client.k: reply.metrics for client, reply in uploads}
        costs.of_clients(entry, self.config.run, uploads)
        return None, MetricRecord(dict(entry.metrics))

    def _check(self, t: int, replies: Iterable[Message]) -> None:
        """Set ``good`` to the valid replies, and add a failure for each other reply."""
        entry, method, config = self.entry, self.method, self.config
        good, refused = self.messenger.open(
            t, replies, method.reply_type, self.clients, method.check
        )
        # Under [privacy] no reply is compared with another, and sizes are not kept: a client would
        # change by more than the noise is made for.
        magnitudes = sanity.measure(method, {} if self.private else self.sent, good)
        entry.magnitudes = {} if self.private else magnitudes
        beyond = sanity.beyond(magnitudes, config.run.sanity)
        refused += [
            Failure(k=k, round=t, reason=f"reply refused: {beyond[k]}", kind="refused")
            for k in beyond
        ]
        self.good = [(client, reply) for client, reply in good if client.k not in beyond]
        if config.score.drift:
            entry.drift = drift.measure(method, self.sent, self.good)
        self.sent = {}
        entry.failures = sorted(entry.failures + refused, key=lambda failure: failure.k)

    def _check_enough(self, good: int, sent: int, what: str, failures: list[Failure]) -> None:
        """Raise ``Stopped`` if fewer replies are valid than ``min-replies`` requires.

        Under [privacy] their number stops nothing: a missing reply counts as a zero update.
        """
        if self.private:
            return
        fraction = self.config.run.min_replies
        needed = math.ceil(fraction * sent - 1e-9)
        if good < max(needed, 1):
            first = failures[0]
            raise Stopped(
                f"round {first.round}: {good} of {sent} {what} are good, min-replies = "
                f"{fraction:g} needs {needed}; client {first.k}: {first.reason}"
            )

    # The second exchange of a round, which Flower's strategies do not have.

    def configure_second(self, t: int) -> Iterable[Message]:
        """Return the messages of the second exchange of round t."""
        with costs.of_server(self.entry, self.config.run):
            sent = self.method.second(t, self.replies)
            payloads = [(self.membership.members[k], payload) for k, payload in sent.items()]
            return self.messenger.make_messages(t, "train.second", payloads).values()

    def aggregate_second(self, t: int, replies: Iterable[Message]) -> None:
        """Open the replies and pass the valid ones to the method.

        Raises ``Stopped`` if clients train in this exchange and fewer replies are valid than
        ``min-replies`` requires.
        """
        entry, method = self.entry, self.method
        assert method.second_reply_type is not None, "the method has a second exchange"
        with clock(entry, "clients"):
            gains, refused = self.messenger.open(
                t, replies, method.second_reply_type, self.clients, what="gain"
            )
            method.aggregate_second(gains, entry)
            costs.of_clients(entry, self.config.run, gains)
        entry.failures = entry.failures + refused
        if method.trains_second:
            entry.replied = [client.k for client, _ in gains]
            self._check_enough(len(gains), len(entry.selected), "replies", entry.failures)

    # BatchNorm's running statistics of the scored models, measured by clients.

    def _measure_statistics(self) -> None:
        """Let clients measure the statistics before a score, if ``score.bn`` requires it."""
        score, last = self.config.score, self.entry.round == self.config.run.rounds
        if score.bn == "recalibrated" and (self._due(score.every) or self._asks_for_scores()):
            clients = self._trusted() if last else self.replies.clients
            self.recalibration = Recalibration(self.scorer.scored, clients)
            for _ in range(score.passes if self.recalibration.measuring else 0):
                self._exchange(self.configure_statistics, self.aggregate_statistics, "statistics")

    def configure_statistics(self, t: int) -> Iterable[Message]:
        """Return the messages of the next pass, for clients with a valid reply in the last pass."""
        assert self.recalibration is not None
        return self.messenger.make_messages(
            t, "evaluate.statistics", self.recalibration.request()
        ).values()

    def aggregate_statistics(self, t: int, replies: Iterable[Message]) -> None:
        """Combine the valid replies of a pass.

        Raises ``Stopped`` if fewer are valid than ``min-replies`` requires.
        """
        recalibration, entry = self.recalibration, self.entry
        assert recalibration is not None
        good, refused = self.messenger.open(
            t, replies, StatisticsReply, self.clients, recalibration.check, "statistics"
        )
        entry.failures = entry.failures + refused
        needed = recalibration.measuring
        self._check_enough(len(good), needed, "measurements", entry.failures[::-1])
        recalibration.take(good)

    # Scores, by the server and by clients.

    def _score(self) -> None:
        """Score the server's model if a score is due; raise ``DivergedRound`` if it diverged."""
        entry, score = self.entry, self.config.score
        if self._due(score.every) or entry.end:
            with self._phase("score"):
                self.scorer.score(entry)
        self.scorer.check_sound(entry, self.guess)
        self.method.release_memory()
        free_memory(self.traffic.get("up", 0))
        self._notice_end()

    def _notice_end(self) -> None:
        """Write to the entry why the primary score ends the run: its target, or no new best."""
        entry, score = self.entry, self.config.score
        accuracy = entry.primary_accuracy
        if score.ends(accuracy):
            entry.reached = score.target
        since = entry.round - self.best.round
        if accuracy is not None and 0 < score.patience <= since and not _better(entry, self.best):
            entry.stalled = since

    def _notice_collapse(self) -> None:
        """Report a collapsed accuracy; raise ``CollapsedRound`` to repeat the round.

        The round is repeated if ``score.collapse`` wants it and a client stands out.
        """
        entry, reaction = self.entry, self.config.score.collapse
        off = reaction == "off" or self.private or self.method.one_shot
        if off or entry.accuracy is None:
            return
        before = collapse(entry.accuracy, self.accuracies, self.task.num_classes)
        if before is None:
            return
        line = f"round {entry.round}: the accuracy collapsed to {entry.accuracy:.4f}"
        collapsed = CollapsedRound(f"{line} from {before:.4f}", entry.round)
        try:
            warning = self._plan(collapsed).why
        except CollapsedRound as impossible:
            warning = str(impossible)
        else:
            if reaction == "undo":
                raise collapsed
        log.warning(warning)
        entry.notes = [warning]

    def _score_at_clients(self) -> None:
        """Let clients score models if a score is due."""
        if self._asks_for_scores():
            self._exchange(self.configure_evaluate, self.aggregate_evaluate, "client scores")

    def configure_evaluate(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Return the score requests for the clients of ``score.clients``."""
        with clock(self.entry, "client scores"):
            requests = score_requests(self.scorer.scored, self.clients, self.scorer.counts)
            return self.messenger.make_messages(server_round, "evaluate", requests).values()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Write the clients' scores to the entry; return their mean accuracy."""
        t, entry = server_round, self.entry
        check = score_check(self.method, self.scorer.counts)
        with clock(entry, "client scores"):
            tuned = self.config.fine_tunes
            kind = FineTunedScoreReply if tuned else ScoreReply
            good, refused = self.messenger.open(t, replies, kind, self.clients, check, "score")
        entry.failures = entry.failures + refused
        if tuned:
            self._record_fine_tuning(good)
        self.scorer.add_scores([score for _, score in good], entry)
        values = [score.accuracy for _, score in good if score.accuracy is not None]
        return MetricRecord({"accuracy": sum(values) / len(values)}) if values else None

    def _record_fine_tuning(self, scores: Sequence[tuple[Client, ScoreReply]]) -> None:
        """Add the mean metrics and the costs of the clients' fine-tuning to the entry."""
        entry, run = self.entry, self.config.run
        tuned = [(c, one) for c, one in scores if isinstance(one, FineTunedScoreReply)]
        entry.metrics = {**entry.metrics, **mean_metrics(tuned, "finetune")}
        costs.of_clients(entry, run, tuned, "finetune")

    def summary(self) -> None:
        """Log nothing, because the journal has all settings."""

    # The record.

    def _record(self, refused_nodes: list[Failure]) -> None:
        """Complete the round's entry, and store it with the state after the round."""
        entry = self.entry
        entry.bytes, self.good = dict(self.traffic), []  # closes the replies' files
        free_memory(self._moved)
        entry.failures = refused_nodes + entry.failures
        resume.note(entry, self.undone)
        if self.scorer.confusion:
            self.record.add_confusion(entry, self.scorer.confusion)
        self.accuracies += [] if entry.accuracy is None else [entry.accuracy]
        self.best = entry if _better(entry, self.best) else self.best
        self.method.selection.add(entry)
        self.membership.after_round({failure.k for failure in entry.failures})
        self._keep()

    def _keep(self) -> None:
        self.record.add(
            self.entry,
            self.method.state,
            self.undone,
            experiment=self.messenger.experiment,
            kept=self.messenger.kept,
            **self.membership.fields(),
        )

    # Before a round: the census, a checkpoint, or the undoing of a round.

    def _begin(self, saved: Checkpoint | None) -> None:
        """Take the census; resume from the checkpoint, or score and record round 0."""
        if saved is not None:
            self._restore(saved)
        entry, record = self.entry, self.record
        with clock(entry, "total"), self._phase("census"):
            self.membership.begin(saved)
            check_bound(self.clients, saved.nodes if saved else {}, self.config.run.rebind)
            self._introduce()
        record.add_settings(self.messenger.experiment, self.method.roster_size)
        if saved is None:
            with clock(entry, "total"), self._phase("score"):
                self.scorer.score(self.scorer.begin(entry))
            self.method.release_memory()
            census.describe(entry, self.method, self.membership.strangers)
            self._keep()
        self.guess = self.scorer.guess(record.journal.entries()[0])

    def _introduce(self) -> None:
        """Hand roster and members to the method."""
        self.method.roster = dict(self.membership.roster)
        self.method.begin(self.clients)

    def _go_back(self, diverged: DivergedRound) -> None:
        """Undo rounds and restore the state before them; raise ``diverged`` if that fails."""
        undone = self._plan(diverged)
        try:
            saved = resume.undo(undone, self.undone, self.record.folder)
        except ValueError as error:
            log.warning("round %d cannot be undone: %s", undone.round, error)
            raise diverged from error
        self._make()
        self._restore(saved)
        self.membership.restore(saved)
        self._introduce()

    def _plan(self, diverged: DivergedRound) -> Undone:
        """Return which round to repeat without which clients; raise ``diverged`` if there is none.

        The raised ``diverged`` names the clients that stand out. It is also raised if the method
        cannot work without these clients.
        """
        entries = [*self.record.journal.entries(), self.entry]
        past, architectures = self.undone, self._architectures
        undone = resume.plan(diverged, self.config, entries, architectures, past, self.guess)
        excluded = resume.excluded([*past, undone], undone.round)
        try:
            self.method.check_enough([c for c in self.clients if c.k not in excluded])
        except Stopped as error:
            raise type(diverged)(undone.why, diverged.t) from error
        return undone

    def _restore(self, saved: Checkpoint) -> None:
        """Restore the state after the round of a checkpoint."""
        self.entry, self.undone = resume.restore(self.method, self.record.journal, saved)
        entries = self.record.journal.entries()
        self.accuracies = [e.accuracy for e in entries if e.round and e.accuracy is not None]
        self.best = Entry(round=0)
        for entry in entries[1:]:
            self.method.selection.add(entry)
            self.best = entry if _better(entry, self.best) else self.best
        self.messenger.channel.experiment = saved.experiment
        self.messenger.kept, self.messenger.after = dict(saved.kept), saved.t

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Measure the time of a phase, and name the phase in the status and in progress lines."""
        self.status.enter(self.entry.round, name)
        with clock(self.entry, name), progress.block("server step" if name == "step" else name):
            yield

    # Conditions and selections.

    @property
    def replies(self) -> Replies[Reply]:
        """Valid replies of this round."""
        return Replies.of(self.good)

    @property
    def _architectures(self) -> dict[int, str]:
        """Architecture of each client."""
        return {client.k: client.architecture for client in self.clients}

    @property
    def _moved(self) -> int:
        """Bytes sent and received in this round."""
        return self.traffic.get("down", 0) + self.traffic.get("up", 0)

    def _trusted(self) -> list[Client]:
        """Return all clients except those excluded since an undone round."""
        return [client for client in self.clients if client.k not in self.method.excluded]

    def _over(self) -> bool:
        """Return whether the newest round is the last one; the census is not a round."""
        entry, config = self.entry, self.config
        reached = entry.round > 0 and config.score.ends(entry.primary_accuracy)
        stalled = 0 < config.score.patience <= (entry.stalled or 0)
        return reached or stalled or entry.round >= config.run.rounds

    def _due(self, every: int) -> bool:
        """Return whether work that is done every ``every`` rounds and after the last one is due."""
        t = self.entry.round
        return t == self.config.run.rounds or (every > 0 and t % every == 0)

    def _asks_for_scores(self) -> bool:
        """Return whether clients score models in this round."""
        score, due = self.config.score, self._due(self.config.score.clients_every)
        if self.scorer.primary == "personal":
            due = due or self._due(score.every)
        return not self.private and (self.entry.end != "" or due)


def _better(entry: Entry, best: Entry) -> bool:
    """Return whether the entry has a primary accuracy, above that of ``best`` if that has one."""
    new, old = entry.primary_accuracy, best.primary_accuracy
    return new is not None and (old is None or new > old)


def _consumed(replies: dict[int, Message]) -> Iterator[Message]:
    """Yield each reply and remove it, so that only the consumer keeps it in memory."""
    for k in list(replies):
        yield replies.pop(k)
