"""Rounds with secure sums: attempts of two exchanges, until one gives the mean of the updates.

In the first exchange clients train and send masked updates; in the second the survivors send what
removes the masks of the sum. The method's step then gets the mean as the reply of every survivor,
so no method depends on masks.
"""

import logging
from collections.abc import Callable, Iterable
from typing import final

from flwr.app import Message

from common.exchange.protocol import MaskedReply, UnmaskReply
from server_app import costs
from server_app.run import Run
from server_app.secure.sums import SecureSum
from server_app.stopped import Stopped
from server_app.storage.journal import clock

ATTEMPTS = 3  #: attempts at the sum of one round

log = logging.getLogger("flwr.fedmosaic")


@final
class SecureRounds:
    """The exchanges of a run with secure sums."""

    def __init__(self, run: Run) -> None:
        self.run, self.sums = run, SecureSum(run.config)
        self._why = ""  # why the last attempt failed

    def check(self) -> None:
        """Raise ``Stopped`` if no round of the roster can have a secure sum."""
        config, clients = self.run.config, len(self.run.membership.roster)
        selected = min(config.run.per_round or clients, clients)
        try:
            config.secure.check(selected, clients, config.run.min_replies)
        except ValueError as error:
            raise Stopped(str(error), released=str(error)) from None

    def add_up(self, configure_train: Callable[[int], Iterable[Message]]) -> None:
        """Repeat the two exchanges until a sum is complete; set ``run.good`` to its replies.

        The entry has the failures of the last attempt, and a note for each attempt before. Raises
        ``Stopped`` after too many attempts.
        """
        run, entry = self.run, self.run.entry
        self.sums.begin_round()
        for attempt in range(1, ATTEMPTS + 1):
            entry.failures, run.good = [], []
            run.exchange(configure_train, self._check_masked, "clients")
            if self.sums.survive(run.good):
                run.exchange(self._configure_second, self._finish, "unmask")
            else:
                first = "".join(f"; client {f.k}: {f.reason}" for f in entry.failures[:1])
                needed = f"the sum needs {self.sums.needed}"
                self._why = f"{len(run.good)} updates have arrived, {needed}{first}"
            if self.sums.mean is not None:
                break
            line = f"attempt {attempt} at the secure sum failed: {self._why}"
            log.warning("round %d: %s", entry.round, line)
            entry.notes = [*entry.notes, line]
        else:
            released = f"round {entry.round}: the secure sum failed in {ATTEMPTS} attempts"
            raise Stopped(f"{released}: {self._why}", released=released)
        entry.clipped, run.good = self.sums.clipped, self.sums.replies(run.good)

    def _check_masked(self, t: int, replies: Iterable[Message]) -> None:
        """Set ``run.good`` to the valid masked replies, and add a failure for each other reply."""
        run, entry = self.run, self.run.entry
        with clock(entry, "clients"):
            opened, refused = run.messenger.open(
                t, replies, MaskedReply, run.clients, self.sums.check
            )
            good, unused, late = run.clock.judge(opened, run.messenger.moved)
            costs.of_clients(entry, run.config.run, unused)
        run.good = [*good]
        failures = entry.failures + refused + late
        entry.failures = sorted(failures, key=lambda failure: failure.k)

    def _configure_second(self, t: int) -> Iterable[Message]:
        """Return the messages of the second exchange."""
        members, sent = self.run.membership.members, self.sums.second()
        payloads = [(members[k], request) for k, request in sent.items()]
        return self.run.messenger.make_messages(t, "train.second", payloads).values()

    def _finish(self, t: int, replies: Iterable[Message]) -> None:
        """Complete the sum with the replies of the second exchange, if they are enough."""
        run, entry = self.run, self.run.entry
        with clock(entry, "unmask"):
            answers, refused = run.messenger.open(
                t, replies, UnmaskReply, run.clients, self.sums.check_second
            )
            run.clock.add_second(answers, run.messenger.moved)
            self._why = self.sums.finish(answers)
        entry.failures = sorted(entry.failures + refused, key=lambda failure: failure.k)
