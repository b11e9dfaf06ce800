"""A run, round by round: select, send, collect, check, aggregate, second exchange, statistics,
score, record.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common import progress
from common.data.dataset import Dataset
from common.exchange.protocol import Reply, Request, ScoreReply, StatisticsReply
from common.flower.rpc import over_grpc
from common.journal import Cost, Entry, Failure, Undone
from common.training import seeds
from common.training.task import Task, global_spec
from server_app import costs
from server_app.memory import free_memory, sending
from server_app.messaging import census, sanity
from server_app.messaging.messenger import Messenger
from server_app.messaging.readmission import Readmission, check_bound
from server_app.method import Client, Replies, mean_metrics
from server_app.methods import make
from server_app.scoring import drift
from server_app.scoring.recalibrate import Recalibration
from server_app.scoring.score import Scorer, asks, checking, write_scores
from server_app.stopped import DivergedRound, Stopped
from server_app.storage import resume
from server_app.storage.checkpoint import Checkpoint
from server_app.storage.journal import clock
from server_app.storage.run_record import Record

log = logging.getLogger("flwr.fedmosaic")


@final
class MethodStrategy(Strategy):
    """The rounds of a run: a method's hooks as messages, and the record of each round.

    Subclasses Flower's ``Strategy`` and not its ``FedAvg``, which sends everyone the same payload,
    demands equal reply keys, turns integer buffers into floats, and averages on over failed
    clients.
    """

    def __init__(self, task: Task, dataset: Dataset, messenger: Messenger, record: Record) -> None:
        self.task, self.dataset, self.messenger, self.record = task, dataset, messenger, record
        self.config, self.traffic = task.config, messenger.channel.traffic
        self.private = self.config.privacy.on  #: clients' own numbers are kept to the server
        self.clients: list[Client] = []  #: with the nodes where they are now, in order of k
        self.entry = self.before = Entry(round=0)  #: of the round at hand, and the one before
        self.sent: dict[int, Request] = {}  #: what the clients of the round were sent, by client
        self.good: list[tuple[Client, Reply]] = []  #: and what they answered
        self.undone: list[Undone] = []
        self.recalibration: Recalibration | None = None
        self._make()

    def _make(self) -> None:
        """Make the method as it is before any round."""
        self.method = make(self.task, global_spec(self.task))
        self.scorer = Scorer(self.method, self.dataset)

    # The run.

    def start(self, grid: Grid, *_: object, **__: object) -> Result:
        """Play all rounds; rounds, timeouts and hyper-parameters come from the run config.

        What comes of it is in the run's folder, and not once more in the ``Result``. Raises
        ``Stopped`` if the run cannot go on; the checkpoint of the last good round is kept.
        """
        self.grid, config, record = grid, self.config, self.record
        saved = resume.newest(config) if config.run.resume else None
        with record.opened():
            self._begin(saved)
            while not self._over():
                self.play_round(self.entry.round + 1)
            record.add_summary(self.scorer.shown.weights_to_score())
        if not config.run.runtime:  # our commands make it themselves
            log.info("completed; for its report: fedmosaic report %s", record.folder)
        return Result()

    def play_round(self, t: int) -> None:
        """Play round t and record it; if it leaves a useless model, go back to before it.

        ``configure_…`` selects clients and makes messages, ``_exchange`` sends them and collects
        the replies, ``aggregate_…`` checks and uses these.
        """
        self.clients, strangers = self.readmission.renew(t, self.clients)
        self.before, self.entry = self.entry, Entry(round=t)
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
                self._score_at_clients()
        except DivergedRound as absurd:
            self._go_back(absurd)
        else:
            self._record(strangers)

    def _exchange(
        self,
        configure: Callable[[int], Iterable[Message]],
        aggregate: Callable[[int, Iterable[Message]], object],
        phase: str,
    ) -> None:
        """Send messages to clients, if there are any, collect the replies, and aggregate them."""
        entry, channel, run = self.entry, self.messenger.channel, self.config.run
        ks = {client.node: client.k for client in self.clients}
        sent = {ks[message.metadata.dst_node_id]: message for message in configure(entry.round)}
        if not sent and not self.private:  # there noise is added though nobody was selected
            return
        self.method.release_memory()
        with _phase(entry, phase), sending(over_grpc(self.grid)):
            replies, lost = channel.exchange(self.grid, sent, run.timeout, entry.round)
        entry.failures = entry.failures + lost
        del sent  # in packed form it takes as much memory again
        free_memory(self.traffic.get("down", 0))
        with costs.of_server(entry, run):
            aggregate(entry.round, _handed_over(replies))
        free_memory(self.traffic.get("up", 0))

    # Training.

    def configure_train(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Select the clients of round t; the training messages to them."""
        t, method, entry = server_round, self.method, self.entry
        with clock(entry, "select"), costs.of_server(entry, self.config.run):
            selected = [self.clients[client.k] for client in method.select(t)]
            entry.selected = [client.k for client in selected]
            request = method.request(t)
            self.sent = {c.k: request(c) if callable(request) else request for c in selected}
            payloads = [(client, self.sent[client.k]) for client in selected]
            return self.messenger.make_messages(t, "train", payloads).values()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open and check the replies, and take the method's step with the good ones.

        Raises ``Stopped`` if there are fewer than ``min-replies`` asks for; ``DivergedRound`` if
        they, or those of the round before, are beyond use.
        """
        t, entry, method = server_round, self.entry, self.method
        with clock(entry, "clients"):
            self._check(t, replies)
        sanity.check_before(entry, self.before)
        self._check_enough(len(self.good), len(entry.selected), "replies", entry.failures)
        uploads = self.replies
        with _phase(entry, "step"), seeds.scope(self.task.seed, "step", t):
            try:
                own = method.step(t, uploads)
            except FloatingPointError as error:
                suspects = sanity.suspects(entry.magnitudes)
                raise DivergedRound(f"round {t}: {error}", t, suspects) from error
        entry.replied = [client.k for client in uploads.clients]
        entry.metrics = own if self.private else {**mean_metrics(uploads), **own}
        entry.client_metrics = {client.k: reply.metrics for client, reply in uploads}
        costs.of_clients(entry, self.config.run, uploads)
        return None, MetricRecord(dict(entry.metrics))

    def _check(self, t: int, replies: Iterable[Message]) -> None:
        """Keep the replies that are to be used, and note why others are not."""
        entry, method, config = self.entry, self.method, self.config
        good, refused = self.messenger.open(
            t, replies, method.reply_type, self.clients, method.check
        )
        entry.magnitudes = sanity.measure(method, self.sent, good)
        beyond = sanity.beyond(entry.magnitudes, config.run.sanity)
        refused += [Failure(k=k, round=t, reason=f"reply refused: {beyond[k]}") for k in beyond]
        self.good = [(client, reply) for client, reply in good if client.k not in beyond]
        if config.score.drift:
            entry.drift = drift.measure(method, self.sent, self.good)
        self.sent = {}
        entry.failures = sorted(entry.failures + refused, key=lambda failure: failure.k)

    def _check_enough(self, good: int, asked: int, what: str, failures: list[Failure]) -> None:
        """Raise ``Stopped`` if there are fewer good answers than ``min-replies`` asks for."""
        fraction = self.config.run.min_replies
        needed = math.ceil(fraction * asked - 1e-9)
        if good < max(needed, 1) and (asked or not self.private):  # secret selection may find none
            first = failures[0]
            raise Stopped(
                f"round {first.round}: {good} of {asked} {what} are good, min-replies = "
                f"{fraction:g} needs {needed}; client {first.k}: {first.reason}"
            )

    # A second exchange in a round, which Flower's strategies do not have.

    def configure_second(self, t: int) -> Iterable[Message]:
        """Messages of the second exchange of round t, for methods that have one."""
        with costs.of_server(self.entry, self.config.run):
            sent = self.method.second(t, self.replies)
            payloads = [(self.clients[k], payload) for k, payload in sent.items()]
            return self.messenger.make_messages(t, "train.second", payloads).values()

    def aggregate_second(self, t: int, replies: Iterable[Message]) -> None:
        """Open the answers and hand the good ones to the method.

        Raises ``Stopped`` if clients train there and fewer are good than ``min-replies`` asks for.
        """
        entry, method = self.entry, self.method
        assert method.second_reply_type is not None, "somebody was asked"
        with clock(entry, "clients"):
            gains, refused = self.messenger.open(
                t, replies, method.second_reply_type, self.clients, what="gain"
            )
            method.aggregate_second(gains, entry)
            costs.of_clients(entry, self.config.run, gains)
        entry.failures = entry.failures + refused
        if method.trains_second:
            entry.replied = [client.k for client, _ in gains]
            self._check_enough(len(gains), len(entry.selected), "answers", entry.failures)

    # The running statistics of what is scored, measured by clients.

    def _measure_statistics(self) -> None:
        """Have them measured before a score, where the run asks for that (``score.bn``)."""
        score, last = self.config.score, self.entry.round == self.config.run.rounds
        if score.bn == "recalibrated" and (self._due(score.every) or self._asks_for_scores()):
            asked = self._trusted() if last else self.replies.clients
            self.recalibration = Recalibration(self.scorer.shown, asked)
            for _ in range(score.passes if self.recalibration.measuring else 0):
                self._exchange(self.configure_statistics, self.aggregate_statistics, "statistics")

    def configure_statistics(self, t: int) -> Iterable[Message]:
        """Messages of the next pass, to those who were good in the pass before."""
        assert self.recalibration is not None
        return self.messenger.make_messages(
            t, "evaluate.statistics", self.recalibration.request()
        ).values()

    def aggregate_statistics(self, t: int, replies: Iterable[Message]) -> None:
        """Combine the good answers of a pass.

        Raises ``Stopped`` if there are fewer than ``min-replies`` asks for.
        """
        anew, entry = self.recalibration, self.entry
        assert anew is not None
        found, refused = self.messenger.open(
            t, replies, StatisticsReply, self.clients, anew.check, "statistics"
        )
        entry.failures = entry.failures + refused
        self._check_enough(len(found), anew.measuring, "measurements", entry.failures[::-1])
        anew.take(found)

    # Scores, by the server and by clients.

    def _score(self) -> None:
        """Score the server's model, if it is time to; raises ``DivergedRound`` if it is useless."""
        entry, score = self.entry, self.config.score
        if self._due(score.every):
            with _phase(entry, "score"):
                self.scorer.score(entry)
        self.scorer.check_sound(entry, self.first_loss)
        self.method.release_memory()
        free_memory(self.traffic.get("up", 0))
        if score.ends(entry.accuracy):
            entry.reached = score.target

    def _score_at_clients(self) -> None:
        """Have clients score models, if it is time to."""
        if self._asks_for_scores():
            self._exchange(self.configure_evaluate, self.aggregate_evaluate, "client scores")

    def configure_evaluate(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Messages that ask the clients of ``score.clients`` to score models."""
        with clock(self.entry, "client scores"):
            asked = asks(self.scorer.shown, self.clients)
            return self.messenger.make_messages(server_round, "evaluate", asked).values()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Write down the clients' scores and how even they are; their mean accuracy."""
        t, entry, check = server_round, self.entry, checking(self.method)
        with clock(entry, "client scores"):
            found, refused = self.messenger.open(
                t, replies, ScoreReply, self.clients, check, "score"
            )
        entry.failures = entry.failures + refused
        write_scores([score for _, score in found], self.method.name, entry)
        values = [score.accuracy for _, score in found if score.accuracy is not None]
        return MetricRecord({"accuracy": sum(values) / len(values)}) if values else None

    def summary(self) -> None:
        """Nothing to log: the journal has it."""

    # The record.

    def _record(self, strangers: list[Failure]) -> None:
        """Complete the round's entry, and have it kept with the state after the round."""
        entry = self.entry
        entry.bytes, self.good = dict(self.traffic), []  # the replies' files are gone with them
        free_memory(self._moved)
        entry.failures = strangers + entry.failures
        resume.note(entry, self.undone)
        self._keep()

    def _keep(self) -> None:
        self.record.add(
            self.entry,
            self.method.state,
            self.undone,
            experiment=self.messenger.experiment,
            nodes={client.k: client.node for client in self.clients},
            kept=self.messenger.kept,
        )

    # What comes before a round: the census, a checkpoint, or a round that is undone.

    def _begin(self, saved: Checkpoint | None) -> None:
        """Find the clients; go on from the checkpoint, or score and record round 0."""
        if saved is not None:
            self._restore(saved)
        entry, record = self.entry, self.record
        with clock(entry, "total"), _phase(entry, "census"):
            nodes = census.wait_for_nodes(self.grid, self.config)
            self.clients = census.take_census(self.grid, nodes, self.messenger, self.task)
            check_bound(self.clients, saved.nodes if saved else {}, self.config.run.rebind)
            self.method.begin(self.clients)
        record.add_settings(self.messenger.experiment, len(self.clients))
        self.readmission = Readmission(self.messenger, self.grid)
        if saved is None:
            with clock(entry, "total"), _phase(entry, "score"):
                self.scorer.score(entry)
            self.method.release_memory()
            census.describe(entry, self.method)
            self._keep()
        past = record.journal.entries()
        self.first_loss = past[0].loss

    def _go_back(self, absurd: DivergedRound) -> None:
        """Undo a round and go on before it; raises ``absurd`` if that cannot be."""
        saved = resume.undo(absurd, self.config, self._trusted(), self.undone)
        self._make()
        self._restore(saved)
        self.method.begin(self.clients)
        self.readmission = Readmission(self.messenger, self.grid)

    def _restore(self, saved: Checkpoint) -> None:
        """Go on after the round of a checkpoint."""
        self.entry, self.undone = resume.restore(self.method, self.record.journal, saved)
        self.messenger.channel.experiment = saved.experiment
        self.messenger.kept, self.messenger.after = dict(saved.kept), saved.t

    # When, and who.

    @property
    def replies(self) -> Replies[Reply]:
        """The good replies of the round at hand."""
        return Replies.of(self.good)

    @property
    def _moved(self) -> int:
        """Bytes that have travelled in the round at hand."""
        return self.traffic.get("down", 0) + self.traffic.get("up", 0)

    def _trusted(self) -> list[Client]:
        """All but those that are left out since a round was undone."""
        return [client for client in self.clients if client.k not in self.method.excluded]

    def _over(self) -> bool:
        """Whether no round follows the newest one; the census is none."""
        entry, config = self.entry, self.config
        reached = entry.round > 0 and config.score.ends(entry.accuracy)
        return reached or entry.round >= config.run.rounds

    def _due(self, every: int) -> bool:
        """Whether it is time for what is done every so many rounds, and after the last one."""
        t = self.entry.round
        return t == self.config.run.rounds or (every > 0 and t % every == 0)

    def _asks_for_scores(self) -> bool:
        """Whether clients score models in this round, as far as is known."""
        reached = self.entry.reached is not None
        return not self.private and (reached or self._due(self.config.score.clients_every))


@contextmanager
def _phase(entry: Entry, name: str) -> Iterator[None]:
    """Measure the time of a phase, and name the phase in reports of progress."""
    with clock(entry, name), progress.block("server step" if name == "step" else name):
        yield


def _handed_over(replies: dict[int, Message]) -> Iterator[Message]:
    """The replies, each of which whoever takes it holds alone."""
    for k in list(replies):
        yield replies.pop(k)
