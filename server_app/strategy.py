"""What Flower sees: a strategy that holds a method and its post.

Subclasses Flower's ``Strategy`` and not its ``FedAvg``, which sends everyone the same payload,
demands equal reply keys, turns integer buffers into floats, and averages on over failed clients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common import flops, peak, seeds
from common.config import MethodOptions
from common.journal import Entry, Failure, Memory, Undone
from common.protocol import Ask, Down, Score, Statistics, Up
from common.records import StateDict
from common.section import Value
from common.tree import snapshot
from server_app import drift, rounds
from server_app.keep.journal import clock, note_flops, note_memory
from server_app.method import Client, Method, Ups, mean_metrics
from server_app.recalibrate import Recalibration
from server_app.score import Scorer, write_client_scores
from server_app.stopped import Absurd, Stopped
from server_app.talk import sanity
from server_app.talk.post import Post
from server_app.track.sink import Sink

DIVERGED = ("training diverged", "not finite")
"""What clients say, or what is said of their replies, where a model is beyond training."""


@final
class MethodStrategy(Strategy):
    """Turns a method's hooks into messages and back, and writes down what came of each round.

    ``clients``: who they are and at which nodes they are now, in order of k; ``entry``: the
    journal's, of the round at hand; ``settings``: the run config as it came.
    """

    def __init__(
        self,
        method: Method[MethodOptions, Up],
        post: Post,
        scorer: Scorer,
        sink: Sink,
        settings: Mapping[str, Value],
    ) -> None:
        self.method, self.post, self.scorer, self.sink = method, post, scorer, sink
        self.settings = settings
        self.clients: list[Client] = []
        self.entry = Entry(round=0)
        self.before = self.entry  #: that of the round before
        self.sent: dict[int, Down] = {}  #: what the clients of the round were sent, by client
        self.undone: list[Undone] = []
        self.good: list[tuple[Client, Up]] = []
        self.recalibration: Recalibration | None = None

    def start(self, grid: Grid, *_: object, **__: object) -> Result:
        """The whole run; rounds, timeouts and hyper-parameters come from the run config.

        What comes of it is in the run's folder, and not once more in the ``Result``.
        """
        rounds.run(self, grid)
        return Result()

    def summary(self) -> None:
        """Nothing to log: the journal has it."""

    @property
    def ups(self) -> Ups[Up]:
        """The good replies of the round at hand."""
        return Ups.of(self.good)

    @property
    def private(self) -> bool:
        """Whether clients' own numbers are kept to the server."""
        return self.method.config.privacy.on

    def failed(self, failures: list[Failure]) -> None:
        """Note answers that were missing or refused."""
        self.entry.failures = self.entry.failures + failures

    # Training.

    def configure_train(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Round t's training messages to the selected clients."""
        selected = [client.k for client in self.method.select(server_round)]
        self.entry.selected = selected
        return self.train_messages(server_round, selected).values()

    def train_messages(self, t: int, ks: Iterable[int]) -> dict[int, Message]:
        """Round t's training messages to clients ``ks``, by client."""
        down = self.method.down(t)
        to = [self.clients[k] for k in ks]
        self.sent = {client.k: down(client) if callable(down) else down for client in to}
        payloads = ((client, self.sent[client.k]) for client in to)
        return self.post.letters(t, "train", payloads)

    def take_up(self, undone: list[Undone]) -> None:
        """The rounds that were undone so far, and who is left out since."""
        self.undone = undone
        self.method.excluded = frozenset(k for each in undone for k in each.suspects)
        self.method.attempts = Counter(each.round for each in undone)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open and check the replies and take the method's step with the good ones.

        Raises ``Stopped`` if there are fewer than ``min-replies`` asks for.
        """
        t, entry = server_round, self.entry
        with clock(entry, "clients"):
            self.good, refused = self.post.open(
                t, self._by_client(replies), self.method.answers, self.clients, self.method.check
            )
            found = sanity.measure(self.method, self.sent, self.good)
            beyond = sanity.beyond(found, self.method.config.run.sanity)
            self.good = [(client, up) for client, up in self.good if client.k not in beyond]
            if self.method.config.score.drift:
                entry.drift = drift.measure(self.method, self.sent, self.good)
            entry.magnitudes, self.sent = found, {}
            refused += [
                Failure(k=k, round=t, reason=f"reply refused: {why}") for k, why in beyond.items()
            ]
        entry.failures = sorted(entry.failures + refused, key=lambda failure: failure.k)
        self._check_before(t, entry)
        self._check_enough(len(self.good), len(entry.selected), "replies", entry.failures)
        ups = self.ups
        with clock(entry, "step"), seeds.scope(self.method.task.seed, "step", t):
            try:
                own = self.method.step(t, ups)
            except FloatingPointError as error:
                raise Absurd(f"round {t}: {error}", t, sanity.suspects(found)) from error
        entry.replied = [client.k for client in ups.clients]
        entry.metrics = own if self.private else {**mean_metrics(ups), **own}
        entry.client_metrics = {client.k: up.metrics for client, up in ups}
        self._cost(self.good)
        return None, MetricRecord(dict(entry.metrics))

    def _cost(self, replies: Sequence[tuple[Client, Up]]) -> None:
        """What the clients' work cost, where the run asks for that."""
        run = self.method.config.run
        if run.flops:
            told = (up.metrics.get(flops.NAME, 0.0) for _, up in replies)
            note_flops(self.entry, "clients", sum(map(int, told)))
        if run.memory:
            most = {client.k: up.metrics.get(peak.NAME, 0.0) for client, up in replies}
            note_memory(self.entry, Memory(clients=most))

    def _check_before(self, t: int, entry: Entry) -> None:
        """Raise ``Absurd``, of the round before, if most clients diverge from what it left."""
        lost = [f for f in entry.failures if any(word in f.reason for word in DIVERGED)]
        if 2 * len(lost) <= len(entry.selected) or not (
            suspects := sanity.suspects(self.before.magnitudes)
        ):
            return
        line = f"{len(lost)} of {len(entry.selected)} clients diverge; client {lost[0].k}"
        raise Absurd(f"round {t}: {line}: {lost[0].reason}", t - 1, suspects)

    def _check_enough(self, good: int, asked: int, what: str, failures: list[Failure]) -> None:
        fraction = self.method.config.run.min_replies
        if asked == 0 and self.private:  # secret selection may find nobody
            return
        needed = math.ceil(fraction * asked - 1e-9)
        if good < max(needed, 1):
            first = failures[0]
            raise Stopped(
                f"round {first.round}: {good} of {asked} {what} are good, min-replies = "
                f"{fraction:g} needs {needed}; client {first.k}: {first.reason}"
            )

    # A second exchange in a round, which Flower's strategies do not have.

    def configure_second(self, t: int) -> Iterable[Message]:
        """Messages of the second exchange of round t, for methods that have one."""
        sent = self.method.second(t, self.ups) if self.method.gains else {}
        payloads = ((self.clients[k], payload) for k, payload in sent.items())
        return self.post.letters(t, "train.second", payloads).values()

    def aggregate_second(self, t: int, replies: Iterable[Message]) -> None:
        """Open the answers and hand the good ones to the method.

        Raises ``Stopped`` if clients train there and fewer are good than ``min-replies`` asks for.
        """
        assert self.method.gains is not None, "somebody was asked"
        with clock(self.entry, "clients"):
            answers, kind = self._by_client(replies), self.method.gains
            gains, refused = self.post.open(t, answers, kind, self.clients, what="gain")
            self.method.receive_second(gains, self.entry)
            self._cost(gains)
        self.failed(refused)
        if self.method.trains_second:
            self.entry.replied = [client.k for client, _ in gains]
            asked, failures = len(self.entry.selected), self.entry.failures
            self._check_enough(len(gains), asked, "answers", failures)

    @property
    def trusted(self) -> list[Client]:
        """All but those that are left out since a round was undone."""
        return [client for client in self.clients if client.k not in self.method.excluded]

    # The running statistics of what is scored, measured by clients.

    def recalibrate(self, asked: Sequence[Client]) -> Recalibration:
        """Begin to have them measured."""
        self.recalibration = Recalibration(self.scorer.shown, asked)
        return self.recalibration

    def configure_statistics(self, t: int) -> Iterable[Message]:
        """Messages of the next pass, to those who were good in the pass before."""
        assert self.recalibration is not None
        return self.post.letters(t, "evaluate.statistics", self.recalibration.down()).values()

    def aggregate_statistics(self, t: int, replies: Iterable[Message]) -> None:
        """Combine the good answers of a pass.

        Raises ``Stopped`` if there are fewer than ``min-replies`` asks for.
        """
        anew, answers = self.recalibration, self._by_client(replies)
        assert anew is not None
        found, refused = self.post.open(
            t, answers, Statistics, self.clients, anew.check, "statistics"
        )
        self.failed(refused)
        newest = self.entry.failures[::-1]
        self._check_enough(len(found), anew.measuring, "measurements", newest)
        anew.take(found)

    # Scoring at the clients.

    def configure_evaluate(self, server_round: int, *_: object, **__: object) -> Iterable[Message]:
        """Messages that ask the clients of ``score.clients`` to score models."""
        networks, own = self.scorer.shown.networks(), self.method.global_spec
        further = self.scorer.shown.further()

        def ask(spec: str, w: StateDict | None) -> Ask:
            models = {name: models[spec or own] for name, models in further.items()}
            return Ask(spec=spec, w=w, models=models)

        asks = {name: ask(net.spec, snapshot(net)) for name, net in networks.items()}
        asks = asks or {own: ask("", self.scorer.shown.ask())}
        to = self.scorer.sample(self.clients)
        payloads = ((c, asks[self.method.scored_by(c) if networks else own]) for c in to)
        return self.post.letters(server_round, "evaluate", payloads).values()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Write down the clients' scores and how even they are; their mean accuracy."""
        check = self.scorer.client_check()
        with clock(self.entry, "client scores"):
            found, refused = self.post.open(
                server_round, self._by_client(replies), Score, self.clients, check, "score"
            )
        self.failed(refused)
        write_client_scores([score for _, score in found], self.method.name, self.entry)
        values = [score.accuracy for _, score in found if score.accuracy is not None]
        return MetricRecord({"accuracy": sum(values) / len(values)}) if values else None

    def _by_client(self, replies: Iterable[Message]) -> dict[int, Message]:
        """The first reply of each client's node; what no client's node sent is left out."""
        ids = {client.node: client.k for client in self.clients}
        found: dict[int, Message] = {}
        for reply in replies:
            if reply.has_content() and reply.metadata.src_node_id in ids:
                found.setdefault(ids[reply.metadata.src_node_id], reply)
        return found
