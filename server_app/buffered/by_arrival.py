"""Asynchronous rounds in the order in which updates really arrive, and their replay.

Without device profiles nothing but the network and the machines decide which update is next. So two
runs differ. The journal has all events of the jobs in their order, and ``Replayed`` takes them from
there: the same clients train the same versions, and the same updates are in each step.
"""

import time
from collections import deque
from typing import final

from common.journal import Failure
from server_app.buffered.jobs import InFlight
from server_app.buffered.rounds import Buffered
from server_app.clock.job import SECOND
from server_app.messaging.census import POLL
from server_app.stopped import Stopped


class ByArrival(Buffered):
    """Jobs whose updates count in the order in which they arrive.

    While it waits, nodes that have come become clients, and jobs of clients that left are lost. A
    job without a reply is lost after ``timeout``.
    """

    _began, _before, _looked = 0.0, 0, 0.0  #: of this process; µs of those before; last look

    @property
    def now(self) -> int:
        """Time in µs since the first job was sent, without the time between two processes."""
        self._began = self._began or time.monotonic()
        return self._before + int((time.monotonic() - self._began) * SECOND)

    def _next(self, t: int) -> None:
        """Fill free slots, and take the first update that arrives."""
        self._fill(t)
        if not self.jobs:
            self._wait(t)
            return
        while not (here := [k for k in self._arrived if k in self.jobs]):
            self._poll()
            if self._arrived.keys() & self.jobs.keys():
                continue
            if time.monotonic() - self._looked > POLL:
                self._looked = time.monotonic()
                if self._renewed(t):
                    return
            self.inbox.pause()
        self._arrive(t, self.jobs[here[0]])

    def restore(self, state: str, excluded: frozenset[int]) -> None:
        super().restore(state, excluded)
        self._before = max(self.idle.values(), default=0)


@final
class Replayed(ByArrival):
    """Jobs and updates in the order of another run's journal (``membership``).

    A client gets no job that was lost there.
    """

    def collect(self, t: int) -> None:
        schedule = self.run.membership.schedule
        assert schedule is not None, "a replay has a journal"
        self._planned = deque(schedule.jobs.get(t, ()))
        super().collect(t)
        if any(event.kind == "arrived" for event in self._planned):
            raise Stopped(
                f"round {t}: membership has more updates than buffer.size = {self.size}; it is the "
                "journal of a run with another buffer.size"
            )

    def _next(self, t: int) -> None:
        """Take the next event of the journal. Raises ``Stopped`` if round t has no further one."""
        if not self._planned:
            have = f"{len(self.buffer)} of buffer.size = {self.size} updates"
            failed = "".join(f"; client {f.k}: {f.reason}" for f in self.run.entry.failures[:1])
            raise Stopped(f"round {t}: membership has no further event, and {have} arrived{failed}")
        event = self._planned.popleft()
        if event.kind != "sent":
            if event.k in self.jobs:
                self._arrive(t, self.jobs[event.k])
        elif event.k in self.run.membership.members:
            self._lost = event.lost
            self._send(t, [self._job(t, event.k)])

    def _starts(self, job: InFlight) -> bool:
        return not self._lost

    def _loss(self, t: int, job: InFlight) -> Failure | None:
        if job.is_sent:
            return None
        return Failure(k=job.k, round=t, kind="late", reason="no reply, by membership")
