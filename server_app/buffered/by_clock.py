"""Asynchronous rounds whose order of events is that of the virtual clock.

The time of a job follows from what the client's last job moved and computed, or from its own reply
if it is the first. So all jobs in flight run at the same time, and neither their real order nor the
number of workers changes a result. After the last event of an instant, free slots are filled.
"""

from typing import final

from common.journal import ON_CLOCK, Failure
from server_app.buffered.jobs import LOSS, REPLY, InFlight
from server_app.buffered.rounds import JOB, Buffered
from server_app.clock.job import SECOND, Job

LOST, *_ = ON_CLOCK
BACK = 3  #: kind of an event: a device is available again


@final
class ByClock(Buffered):
    """Jobs whose events are ordered by the virtual clock."""

    @property
    def now(self) -> int:
        """Time on the clock in µs."""
        return max(self.run.clock.end, self.run.clock.now)

    def _next(self, t: int) -> None:
        """Fill free slots if no event is due, and take the next event."""
        if all(job.due != self.now for job in self.jobs.values()):
            self._fill(t)
        for job in [job for job in self.jobs.values() if job.due is None]:
            self._time(job, self._outcome(job).counts)
        first = min(self.jobs.values(), key=lambda job: job.event, default=None)
        idle = self._idle(t) if len(self.jobs) < self.concurrency else []
        back = min((time for time, _ in idle if time > self.now), default=None)
        if back is not None and (first is None or (back, BACK) < first.event[:2]):
            self.run.clock.end = back
        elif first is not None:
            self.run.clock.end = first.event[0]
            self._arrive(t, first)
        else:
            self._wait(t)

    def _available(self, k: int) -> int | None:
        trace = self.run.clock.devices.trace(k)
        return trace.next_on(self.now) if trace else self.now

    def _starts(self, job: InFlight) -> bool:
        run, clock, client = self.run, self.run.clock, self.run.membership.known[job.k]
        if (lost := clock.loss_of(client, JOB, job.number)) is not None:
            job.due, job.kind = self._noticed(job.start + lost), LOSS
            return False
        if run.private or job.k in clock.predictor.newest:
            self._time(job, clock.predicted_job(client))
        return True

    def _loss(self, t: int, job: InFlight) -> Failure | None:
        if job.kind != LOSS:
            return None
        lost = (self.now - job.start) / SECOND - self.run.config.clock.notice
        reason = f"its job was lost after {lost:.6g} s"
        return Failure(k=job.k, round=t, kind=LOST, reason=reason)

    def _time(self, job: InFlight, counts: Job) -> None:
        """Set the time of a job's event, by what the job moves and computes."""
        client = self.run.membership.known[job.k]
        end, complete = self.run.clock.end_of(client, counts, job.start, JOB, job.number)
        job.due, job.kind = (end, REPLY) if complete else (self._noticed(end), LOSS)

    def _noticed(self, lost: int) -> int:
        return lost + int(self.run.config.clock.notice * SECOND)
