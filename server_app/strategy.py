"""The rounds of a run: select, send, collect, check, aggregate, second exchange, statistics, score,
record.
"""

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from typing import final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common import progress, seeds
from common.data.dataset import Dataset
from common.exchange.protocol import FineTunedScoreReply, Reply, ScoreReply
from common.journal import ON_CLOCK, Cost, Entry, Failure
from common.training.task import Task
from server_app import callbacks, costs
from server_app.buffered import buffered_rounds
from server_app.buffered.rounds import Buffered
from server_app.callbacks import RunCallback
from server_app.callbacks.collapse import Collapse
from server_app.callbacks.drift import Drift
from server_app.callbacks.ending import Ending
from server_app.callbacks.fine_tuning import FineTuning
from server_app.callbacks.recalibrate import Recalibrate
from server_app.history import History
from server_app.memory import free_memory
from server_app.messaging import census, sanity
from server_app.messaging.membership import Membership
from server_app.messaging.messenger import Messenger
from server_app.messaging.readmission import check_bound
from server_app.method import Metrics, Replies, mean_metrics
from server_app.release import RELEASED, Pace, withhold
from server_app.run import Run
from server_app.scoring.score import client_scores, score_check, score_requests
from server_app.secure.rounds import SecureRounds
from server_app.stopped import DivergedRound
from server_app.storage import resume
from server_app.storage.checkpoint import Checkpoint
from server_app.storage.journal import clock
from server_app.storage.run_record import Record
from server_app.storage.status_file import StatusFile

log = logging.getLogger("flwr.fedmosaic")

BUILT_IN: Sequence[type[RunCallback]] = (Drift, Recalibrate, FineTuning, Ending, Collapse)
"""Built-in callbacks, in the order of their calls."""


@final
class MethodStrategy(Run, Strategy):
    """Strategy that plays the rounds of a run with a method's hooks, and records each round.

    It derives from Flower's ``Strategy`` and not from ``FedAvg``. ``FedAvg`` sends all clients the
    same payload, demands equal reply keys, turns integer buffers into floats, and averages without
    the failed clients.
    """

    def __init__(self, task: Task, dataset: Dataset, messenger: Messenger, record: Record) -> None:
        super().__init__(task, dataset, messenger, record)
        self.built_in: Sequence[RunCallback] = [kind(self) for kind in BUILT_IN]
        self.history = History(self, self.built_in)
        self.plan = self.history.plan
        self.refused_nodes: list[Failure] = []  #: failures before a round, for its entry
        self.secure = SecureRounds(self) if self.config.secure.on else None
        self.pace = Pace(self.config.privacy.round_seconds if self.private else 0.0)

    def make(self) -> None:
        super().make()
        self.buffered = buffered_rounds(self, self._renew) if self.config.buffered else None

    def restore(self, saved: Checkpoint) -> None:
        if self.buffered is not None:
            excluded = resume.excluded(self.history.undone, saved.t + 1)
            self.buffered.restore(saved.jobs, excluded)

    def settle(self) -> None:
        if self.buffered is not None:
            self.buffered.settle()

    # The run.

    def start(self, grid: Grid, *_: object, **__: object) -> Result:
        """Play all rounds; rounds, timeouts and hyper-parameters come from the run config.

        The results are in the run's folder, so the ``Result`` is empty. Raises ``Stopped`` if the
        run cannot continue; the checkpoint of the last valid round is kept.
        """
        self.grid, config, record = grid, self.config, self.record
        self.membership = Membership(self.messenger, grid, self.task)
        self.status = StatusFile(
            record.folder,
            grid,
            lambda: self.membership.known,
            timed=not config.privacy.hides_times,
        )
        self.messenger.channel.waiting = self.status.renew
        saved = resume.newest(config) if config.run.resume else None
        with record.opened():
            self._begin(saved)
            while not self._over():
                self.play_round(self.entry.round + 1)
            for callback in self.history.callbacks:
                callback.end()
            record.add_predictions(self.scorer.predictions())
            card = self.task.card(self.method.global_spec)
            networks = self.scorer.scored.raw() | self.method.approximations()
            record.add_adapters(networks, self.method.main)
            record.add_summary(self.scorer.scored.weights_to_score(), card=card)
        if not config.run.runtime:  # our commands write the report themselves
            log.info(
                "completed; for its report: fedmosaic report %s", record.folder, extra=RELEASED
            )
        return Result()

    def play_round(self, t: int) -> None:
        """Play round t and record it; if the model diverges, undo the round.

        ``configure_…`` selects clients and makes messages, ``exchange`` sends them and collects
        the replies, ``aggregate_…`` checks and uses the replies.
        """
        self.pace.begin()
        self.before, self.entry, self.refused_nodes = self.entry, Entry(round=t), []
        self._renew(t)
        self.scorer.begin(self.entry)
        self.method.excluded = resume.excluded(self.history.undone, t)
        attempt = self.method.attempts.get(t, 0)
        if self.buffered is None:
            candidates = [c for c in self.trusted() if self.method.selection.allows(c.info)]
            self.method.unavailable = self.clock.begin(t, attempt, candidates)
        self.traffic.clear()
        try:
            with clock(self.entry, "total"), progress.block(f"round {t}"):
                if self.buffered is not None:
                    self._collect(t, self.buffered)
                elif self.secure is not None:
                    self.secure.add_up(self.configure_train)
                    with costs.of_server(self.entry, self.config.run):
                        self._step(self.replies)
                else:
                    self.exchange(self.configure_train, self.aggregate_train, "clients")
                if self.method.second_reply_type is not None:
                    self.exchange(self.configure_second, self.aggregate_second, "clients")
                if (numbers := self.method.numbers(self.replies)) is not None:
                    self.entry.cost = Cost(numbers=numbers, bytes=self.moved)
                self._call(RunCallback.before_score)
                self._score()
                self._call(RunCallback.after_score)
                self._score_clients()
                if self.entry.end and not self.due(self.config.score.every):
                    self._score()  # the clients' scores end the run
        except DivergedRound as diverged:
            self.pace.wait(t, self.status.renew)
            self.history.go_back(diverged)
        else:
            self.pace.wait(t, self.status.renew)
            self._record()

    def _call(self, hook: Callable[..., None], *args: object) -> None:
        """Call a hook of the built-in callbacks, in their order."""
        for callback in self.built_in:
            getattr(callback, hook.__name__)(*args)

    def _renew(self, t: int) -> None:
        """Update the members before round t; write the events and failures to its entry."""
        method, membership = self.method, self.membership
        self.status.enter(t, "exchange" if self.config.privacy.hides_times else "membership")
        membership.busy = self.busy
        events, refused_nodes = membership.renew(t, method.admit)
        method.clients, method.roster = self.clients, membership.roster
        for event in events:
            if event.kind == "left":
                method.left(event.k)
            else:
                method.joined(membership.known[event.k], lost=event.kind == "replaced")
            if self.buffered is not None:
                self.buffered.drop(event.k)
        if events:
            method.check_enough(self.clients)
            self.entry.events = [*self.entry.events, *events]
        self.refused_nodes += refused_nodes

    # Training.

    def configure_train(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Select the clients of round t, and return their training messages."""
        t, method, entry = server_round, self.method, self.entry
        with clock(entry, "select"), costs.of_server(entry, self.config.run):
            selected = method.select(t)
            entry.selected = [client.k for client in selected]
            request, missed = method.requests(t), self.membership.missed
            asked = [c for c in self.clock.dispatch(selected) if c.k not in missed]
            asked = asked if self.secure is None else self.secure.sums.among(asked)
            method.limits = self.clock.limits
            requests = {c.k: request(c) if callable(request) else request for c in asked}
            method.sent = {k: r.limited(method.limits.get(k, 0)) for k, r in requests.items()}
            if self.secure is not None:
                method.sent = self.secure.sums.begin(asked, method.sent, method.uploaded(t))
            if silent := sorted(missed & {*entry.selected} - self.clock.lost.keys()):
                why = "no reply, by membership"
                entry.failures = [Failure(k=k, round=t, reason=why, kind="late") for k in silent]
            payloads = [(client, method.sent[client.k]) for client in asked]
            return self.messenger.make_messages(t, "train", payloads).values()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open and check the replies, and take the method's step with the valid ones.

        Raises ``Stopped`` if fewer are valid than ``min-replies`` requires, and ``DivergedRound``
        if this round or the one before diverged.
        """
        with clock(self.entry, "clients"):
            self._check(server_round, replies)
        selected = len(self.entry.selected)
        sanity.check_before(self.entry, self.before, self.architectures, selected)
        self.check_enough(len(self.good), self.waited, "replies", self.entry.failures)
        return None, MetricRecord({**self._step(self.replies)})

    def _collect(self, t: int, buffered: Buffered) -> None:
        """Take the updates of an asynchronous step, and the step; raise as ``aggregate_train``."""
        self.method.release_memory()
        with self.phase("clients"):
            buffered.collect(t)
            self._call(RunCallback.after_replies)
        ended = len(self.good) + len(self.entry.failures)
        sanity.check_before(self.entry, self.before, self.architectures, ended)
        with costs.of_server(self.entry, self.config.run):
            self._step(buffered.replies())
        free_memory(self.traffic.get("up", 0))

    def _step(self, uploads: Replies[Reply]) -> Metrics:
        """Take the method's step with the replies, and return its metrics for the journal.

        Raises ``DivergedRound`` if the server's training diverges.
        """
        entry, method, good = self.entry, self.method, self.replies
        t = entry.round
        entry.replied = [client.k for client in good.clients]
        with self.phase("step"), seeds.scope(self.task.seed, "step", t):
            try:
                metrics = method.step(t, uploads)
            except FloatingPointError as error:
                released = f"round {t}: the server's training diverged"
                raise DivergedRound(f"round {t}: {error}", t, released) from error
        entry.metrics = metrics if self.private else {**mean_metrics(good), **metrics}
        entry.client_metrics = {client.k: reply.metrics for client, reply in good}
        costs.of_clients(entry, self.config.run, good)
        method.sent = {}
        return entry.metrics

    def _check(self, t: int, replies: Iterable[Message]) -> None:
        """Set ``good`` to the valid replies, and add a failure for each other reply."""
        entry, method, config = self.entry, self.method, self.config
        opened, refused = self.messenger.open(
            t, replies, method.reply_type, self.clients, method.check
        )
        good, unused, late = self.clock.judge(opened, self.messenger.moved)
        costs.of_clients(entry, config.run, unused)
        unusual = sanity.refused(entry, method, good)
        beyond = {failure.k for failure in unusual}
        self.good = [(client, reply) for client, reply in good if client.k not in beyond]
        self._call(RunCallback.after_replies)
        failures = entry.failures + refused + unusual + late
        entry.failures = sorted(failures, key=lambda failure: failure.k)

    # The second exchange of a round, which Flower's strategies do not have.

    def configure_second(self, t: int) -> Iterable[Message]:
        """Return the messages of the second exchange of round t."""
        method = self.method
        with costs.of_server(self.entry, self.config.run):
            sent = method.second(t, self.replies)
            members, limits = self.membership.members, method.limits
            payloads = [(members[k], r.limited(limits.get(k, 0))) for k, r in sent.items()]
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
                t, replies, method.second_reply_type, self.clients, what=method.second_reply_name
            )
            self.clock.add_second(gains, self.messenger.moved)
            method.aggregate_second(gains, entry)
            costs.of_clients(entry, self.config.run, gains)
        entry.failures = entry.failures + refused
        if method.trains_second:
            entry.replied = [client.k for client, _ in gains]
            self.check_enough(len(gains), self.waited, "replies", entry.failures)

    # Scores, by the server and by clients.

    def _score(self) -> None:
        """Score the server's model if a score is due; raise ``DivergedRound`` if it diverged."""
        entry, score = self.entry, self.config.score
        if self.due(score.every) or entry.end:
            with self.phase("score"):
                self.scorer.score(entry)
        self.scorer.check_sound(entry, self.guess)
        self.method.release_memory()
        free_memory(self.traffic.get("up", 0))

    def _score_clients(self) -> None:
        """Let clients score if that is due: idle ones, and all after the last round."""
        last = self.due(0) or self.entry.end != ""
        if last and self.buffered is not None:
            self.buffered.finish()
        if self.asks_for_scores():
            self.exchange(self.configure_evaluate, self.aggregate_evaluate, "client scores")
            if self.busy and not self.entry.scores:  # the newest scores of clients that are busy
                self.aggregate_evaluate(self.entry.round, [])
        if self.entry.end and not last and self.busy:  # the clients' scores end the run
            self._score_clients()

    def configure_evaluate(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Return the score requests for the clients of ``score.clients``."""
        with clock(self.entry, "client scores"):
            requests = score_requests(self.scorer.scored, self.clients, self.scorer.counts)
            idle = [(client, sent) for client, sent in requests if client.k not in self.busy]
            return self.messenger.make_messages(server_round, "evaluate", idle).values()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Write the clients' scores to the entry; return their mean accuracy."""
        t, entry = server_round, self.entry
        check = score_check(self.method, self.scorer.counts)
        kind = FineTunedScoreReply if self.config.fine_tunes else ScoreReply
        with clock(entry, "client scores"):
            good, refused = self.messenger.open(t, replies, kind, self.clients, check, "score")
        entry.failures = entry.failures + refused
        self.scorer.add_scores([score for _, score in good], entry, self.busy)
        self.clock.add_scores([client for client, _ in good], self.messenger.moved)
        self._call(RunCallback.after_client_scores, good)
        values = [s.own for s in client_scores([reply for _, reply in good]) if s.own is not None]
        name = self.entry.measure.name
        return MetricRecord({name: sum(values) / len(values)}) if values else None

    @property
    def busy(self) -> Set[int]:
        """Clients that train, in asynchronous rounds, and get no message meanwhile."""
        return self.buffered.jobs.keys() if self.buffered is not None else frozenset()

    def summary(self) -> None:
        """Log nothing, because the journal has all settings."""

    # The record.

    def _record(self) -> None:
        """Complete the round's entry, and store it with the state after the round."""
        entry = self.entry
        entry.bytes, self.good = dict(self.traffic), []  # closes the replies' files
        free_memory(self.moved)
        entry.failures = self.refused_nodes + entry.failures
        resume.note(entry, self.history.undone)
        if self.scorer.confusion:
            self.record.add_confusion(entry, self.scorer.confusion)
        self.clock.close(entry)
        self.method.selection.add(entry)
        self.membership.after_round({f.k for f in entry.failures if f.kind not in ON_CLOCK})
        self._keep()

    def _keep(self) -> None:
        """Store the entry, as far as it may leave the server, and the state after the round."""
        withhold(self.entry, self.config, len(self.membership.roster))
        for built_in in self.built_in:
            built_in.after_round(self.entry)
        for user in self.history.by_user.values():  # a copy: no callback changes the journal
            user.after_round(self.entry.model_copy(deep=True))
        self.record.add(
            self.entry,
            self.method.state,
            self.history.undone,
            experiment=self.messenger.experiment,
            task=self.task.fingerprint,
            kept=self.messenger.kept,
            callbacks=callbacks.states(self.history.by_user),
            jobs="" if self.buffered is None else self.buffered.state(),
            **self.membership.fields(),
        )
        if self.buffered is not None:
            self.buffered.release()

    # Before a round: the census, a checkpoint, or the undoing of a round.

    def _begin(self, saved: Checkpoint | None) -> None:
        """Take the census; resume from the checkpoint, or score and record round 0."""
        if saved is not None:
            self.history.restore(saved)
        else:
            self.history.begin()
        entry, record = self.entry, self.record
        with clock(entry, "total"), self.phase("census"):
            self.membership.begin(saved)
            check_bound(self.clients, saved.nodes if saved else {}, self.config.run.rebind)
            self.introduce()
            if self.secure is not None:
                self.secure.check()
        record.add_settings(self.messenger.experiment, self.method.roster_size)
        if saved is None:
            with clock(entry, "total"), self.phase("score"):
                self.scorer.score(self.scorer.begin(entry))
            self.method.release_memory()
            census.describe(entry, self.method, self.membership.strangers)
            self._keep()
        self.guess = self.scorer.guess(record.journal.entries()[0])

    def _over(self) -> bool:
        """Return whether the newest round is the last one; the census is not a round."""
        entry, config = self.entry, self.config
        reached = entry.round > 0 and config.score.ends(entry.primary_score, entry.measure)
        stalled = 0 < config.score.patience <= (entry.stalled or 0)
        return reached or stalled or entry.round >= config.run.rounds
