"""The state of a run, and what its rounds, its callbacks and its history share."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flwr.app import Message
from flwr.serverapp import Grid

from common import progress
from common.data.dataset import Dataset
from common.exchange.protocol import Reply
from common.flower.rpc import over_grpc
from common.journal import ON_CLOCK, Entry, Failure, Undone
from common.training.task import Task, global_spec
from server_app import costs
from server_app.clock.job import SECOND
from server_app.clock.rounds import VirtualClock
from server_app.memory import free_memory, sending
from server_app.messaging.membership import Membership
from server_app.messaging.messenger import Messenger
from server_app.method import Client, Replies
from server_app.methods import make
from server_app.scoring.score import Scorer
from server_app.stopped import DivergedRound, Stopped
from server_app.storage.checkpoint import Checkpoint
from server_app.storage.journal import clock
from server_app.storage.run_record import Record
from server_app.storage.status_file import StatusFile


class Run:
    """A run on the server: its parts, and its current round."""

    grid: Grid
    membership: Membership
    status: StatusFile
    guess: float  #: loss of an untrained model
    plan: Callable[[DivergedRound], Undone]  #: which round to repeat, see ``History.plan``

    def __init__(self, task: Task, dataset: Dataset, messenger: Messenger, record: Record) -> None:
        self.task, self.dataset, self.messenger, self.record = task, dataset, messenger, record
        self.config, self.traffic = task.config, messenger.channel.traffic
        self.private = self.config.privacy.on  #: no numbers of single clients in the journal
        self.entry = self.before = Entry(round=0)  #: journal entry of this round, and the previous
        self.good: list[tuple[Client, Reply]] = []  #: valid replies of this round
        self.make()

    def make(self) -> None:
        """Create the method in its initial state."""
        self.method = make(self.task, global_spec(self.task))
        self.scorer = Scorer(self.method, self.dataset)
        self.clock = VirtualClock(self.task)

    def restore(self, saved: Checkpoint) -> None:
        """Restore what a checkpoint has beside method and membership."""

    def settle(self) -> None:
        """Wait until no client works, before a round is undone."""

    def introduce(self) -> None:
        """Hand roster and members to the method."""
        self.method.roster = dict(self.membership.roster)
        self.method.begin(self.clients)
        if self.clock.on:
            known = self.membership.known
            self.method.selection.predicted = lambda k: self.clock.predicted(known[k]) / SECOND

    def exchange(
        self,
        configure: Callable[[int], Iterable[Message]],
        aggregate: Callable[[int, Iterable[Message]], object],
        phase: str,
    ) -> None:
        """Send the messages if there are any, collect the replies, and aggregate them."""
        entry, channel, run = self.entry, self.messenger.channel, self.config.run
        ks = {client.node: client.k for client in self.clients}
        sent = {ks[message.metadata.dst_node_id]: message for message in configure(entry.round)}
        # With privacy, noise is added without any client too. All jobs may be lost on the clock.
        if not sent and not self.private and not self.clock.lost:
            return
        self.method.release_memory()
        with self.phase(phase), sending(over_grpc(self.grid)):
            channel.seconds.clear()
            replies, lost = channel.exchange(self.grid, sent, run.timeout, entry.round)
        if self.clock.on and phase == "clients" and not self.private:
            took, before = channel.seconds, entry.measured
            both = sorted({*before, *took})
            entry.measured = {k: round(before.get(k, 0.0) + took.get(k, 0.0), 6) for k in both}
        entry.failures = entry.failures + lost
        del sent  # frees the packed payloads, which are as large as the replies
        free_memory(self.traffic.get("down", 0))
        with costs.of_server(entry, run):
            aggregate(entry.round, _consumed(replies))
        free_memory(self.traffic.get("up", 0))

    def check_enough(self, good: int, sent: int, what: str, failures: list[Failure]) -> None:
        """Raise ``Stopped`` if fewer replies are valid than ``min-replies`` requires.

        Under [privacy] their number stops nothing: a missing reply counts as a zero update.
        """
        if self.private:
            return
        fraction = self.config.run.min_replies
        needed = max(math.ceil(fraction * sent - 1e-9), 1)
        if good < needed:
            first = failures[0]
            raise Stopped(
                f"round {first.round}: {good} of {sent} {what} are good, min-replies = "
                f"{fraction:g} needs {needed}; client {first.k}: {first.reason}"
            )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the time of a phase, and name the phase in the status and in progress lines."""
        if not (self.config.privacy.hides_times and self.entry.round):
            self.status.enter(self.entry.round, name)
        with clock(self.entry, name), progress.block("server step" if name == "step" else name):
            yield

    @property
    def clients(self) -> list[Client]:
        """The members with their current nodes, in order of k."""
        return self.membership.clients

    @property
    def replies(self) -> Replies[Reply]:
        """Valid replies of this round."""
        return Replies.of(self.good)

    @property
    def architectures(self) -> dict[int, str]:
        """Architecture of each client."""
        return {client.k: client.architecture for client in self.clients}

    @property
    def moved(self) -> int:
        """Bytes sent and received in this round."""
        return self.traffic.get("down", 0) + self.traffic.get("up", 0)

    @property
    def waited(self) -> int:
        """Number of selected clients whose replies the virtual clock does not lose or reject."""
        entry = self.entry
        return len(entry.selected) - sum(f.kind in ON_CLOCK for f in entry.failures)

    def trusted(self) -> list[Client]:
        """Return all clients except those excluded since an undone round."""
        return [client for client in self.clients if client.k not in self.method.excluded]

    def due(self, every: int) -> bool:
        """Return whether work that is done every ``every`` rounds and after the last one is due."""
        t = self.entry.round
        return t == self.config.run.rounds or (every > 0 and t % every == 0)

    def asks_for_scores(self) -> bool:
        """Return whether clients score models in this round."""
        score, due = self.config.score, self.due(self.config.score.clients_every)
        if self.scorer.primary == "personal":
            due = due or self.due(score.every)
        return not self.private and (self.entry.end != "" or due)


def _consumed(replies: dict[int, Message]) -> Iterator[Message]:
    """Yield each reply and remove it, so that only the consumer keeps it in memory."""
    for k in list(replies):
        yield replies.pop(k)
