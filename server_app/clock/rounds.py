"""Rounds on the virtual clock: who is available, whose reply counts, and when a round ends.

The clock changes nothing but what its settings say: without a deadline, over-selection, loss and
traces, it measures. All times are a function of configuration and seed, never of the order in which
replies arrive. Under [privacy] a job's time is the predicted one of full batches, which does not
depend on a client's samples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar, final

from common import seeds
from common.exchange.protocol import Reply
from common.journal import ON_CLOCK, ClockTime, Entry, Failure
from common.training import costs
from common.training.task import Task, global_spec
from server_app.clock.devices import Devices
from server_app.clock.job import EXACT, SECOND, Factors, Job, Time, bytes_of_step, time_of
from server_app.clock.prediction import Predictor, quantile
from server_app.clock.traces import Interrupted
from server_app.method import Client
from server_app.stopped import Stopped

R = TypeVar("R", bound=Reply)
LOST, LATE, UNNEEDED, STALE = ON_CLOCK
STEPS = "steps"  #: metric of a reply with the number of local optimiser steps
Moved = Mapping[int, tuple[int, int]]
"""Bytes of arrays in each client's payloads of an exchange, down and up."""


@final
class VirtualClock:
    """The virtual clock of a run; without device profiles (``on``) its methods change nothing.

    Times are integer microseconds. ``now``: the end of the newest round.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.config, self.settings = task, task.config, task.config.clock
        self.on, self.private = task.config.on_clock, task.config.privacy.on
        self.predictor, self.now = Predictor(task), 0
        self.devices = Devices(task.config)
        self.restart((), 0)

    def restart(self, name: tuple[str | int, ...], start: int) -> None:
        """Start a round at ``start``; ``name``: of the random streams of its jobs."""
        self._name, self.start, self.end = name, start, start
        self.asked: dict[int, Client] = {}
        self.jobs: dict[int, Job] = {}
        self.spent: dict[int, Time] = {}  #: time of each client's jobs
        self.lost: dict[int, int] = {}  #: when each lost job was lost, after the start
        self.late: list[int] = []
        self.limits: dict[int, int] = {}  #: local steps of clients with partial work

    # A round, in the order of the calls.

    def begin(self, t: int, attempt: int, clients: Sequence[Client]) -> frozenset[int]:
        """Start round t, and return the clients that are not available at its start.

        It starts when the round before has ended and a client is available. ``attempt``: number of
        undone attempts at round t. Raises ``Stopped`` if no client is ever available again.
        """
        if not self.on:
            return frozenset()
        free = {
            c.k: trace.next_on(self.now) if (trace := self.devices.trace(c.k)) else self.now
            for c in clients
        }
        times = [time for time in free.values() if time is not None]
        if clients and not times:
            raise Stopped(f"round {t}: no client's device is available again, by its trace")
        self.restart((t, attempt) if attempt else (t,), min(times, default=self.now))
        return frozenset(k for k, time in free.items() if time != self.start)

    def predicted(self, client: Client) -> int:
        """Return the predicted microseconds of a client's job with full work, without jitter."""
        return self._time(client, self.predicted_job(client)).micros

    def dispatch(self, asked: Sequence[Client]) -> list[Client]:
        """Return the clients whose jobs are not lost, and set deadline and partial work.

        Raises ``Stopped`` if no client can reply before the deadline.
        """
        if not self.on:
            return list(asked)
        self.asked = {client.k: client for client in asked}
        self.deadline = self._deadline()
        losses = {client.k: self.loss_of(client, *self._name) for client in asked}
        self.lost = {k: after for k, after in losses.items() if after is not None}
        if self.settings.partial and self.deadline is not None:
            self._shorten(self.deadline)
        return [client for client in asked if client.k not in self.lost]

    def loss_of(self, client: Client, *name: str | int) -> int | None:
        """Return the microseconds after which a client's job is lost; None if it is not.

        ``name``: of the job's random streams, after the client.
        """
        if not self.settings.loss:
            return None
        rng = seeds.rng(self.task.seed, "dropout", client.k, *name)
        lost = rng.random() < self.settings.loss
        return int(rng.random() * self.predicted(client)) if lost else None

    def _deadline(self) -> int | None:
        """Return the deadline of this round, after its start; None without one."""
        if not (text := self.settings.deadline) or not self.asked:
            return None
        if text.startswith("q"):
            times = {k: self.predicted(client) for k, client in self.asked.items()}
            return quantile(times, float(text[1:]))
        limit = int(float(text) * SECOND)
        k, least = min(((k, self._least(c)) for k, c in self.asked.items()), key=lambda x: x[::-1])
        if least > limit:
            raise Stopped(
                f"round {self._name[0]}: clock.deadline = {text} s is under every prediction; the "
                f"fastest client, {k}, needs {least / SECOND:.6g} s"
            )
        return limit

    def _least(self, client: Client) -> int:
        """Return the predicted microseconds of the least work that a client may do."""
        job = self.predicted_job(client)
        if self.settings.partial:
            job = job._replace(steps=1, operations=job.operations // job.steps)
        return self._time(client, job).micros

    def _shorten(self, deadline: int) -> None:
        """Give each client the most steps that fit the deadline, at least one."""
        for client in self.asked.values():
            job = self.predicted_job(client)
            time = self._time(client, job)
            room = deadline / SECOND - time.communication
            steps = max(int(room / (time.work / job.steps)), 1)
            if steps < job.steps:
                self.limits[client.k] = steps

    def judge(
        self, good: Sequence[tuple[Client, R]], moved: Moved
    ) -> tuple[list[tuple[Client, R]], list[tuple[Client, R]], list[Failure]]:
        """Return the replies that count, those that do not, and failures for these and lost jobs.

        Raises ``Stopped`` if none counts because all came after the deadline.
        """
        if not self.on:
            return list(good), [], []
        if self.private:  # also without the reply of a client, which its data may have prevented
            asked = self.asked.values()
            every = (self._add(client, self.predicted_job(client), self.start) for client in asked)
            self.end = max(every, default=self.start)
            return list(good), [], []
        jobs = [(client, self.job_of(client, reply, moved)) for client, reply in good]
        ends = {c.k: self._add(c, job, self.start) - self.start for c, job in jobs}
        done = {k: end for k, end in ends.items() if k not in self.lost}
        order = sorted(done, key=lambda k: (done[k], k))
        in_time = [k for k in order if self.deadline is None or done[k] <= self.deadline]
        needed = in_time[: self.config.run.per_round or len(in_time)]
        self.end = self.start + self._length(done, in_time, needed)
        reasons: dict[int, tuple[str, str]] = {
            k: (LOST, f"its job was lost after {at / SECOND:.6g} s") for k, at in self.lost.items()
        }
        for k in order:
            if k not in in_time and self.deadline is not None:
                reasons[k] = LATE, f"late by {(done[k] - self.deadline) / SECOND:.6g} s"
            elif k not in needed:
                reasons[k] = UNNEEDED, f"not needed: {len(needed)} replies came before it"
        self.late = [k for k in order if k not in needed]
        if done and not needed:
            raise Stopped(
                f"round {self._name[0]}: no reply came within clock.deadline = "
                f"{self.settings.deadline}; the fastest client, {order[0]}, took "
                f"{done[order[0]] / SECOND:.6g} s"
            )
        failures = [
            Failure.model_validate({"k": k, "round": self._name[0], "reason": why, "kind": kind})
            for k, (kind, why) in reasons.items()
        ]
        used = [pair for pair in good if pair[0].k in needed]
        return used, [pair for pair in good if pair[0].k not in needed], failures

    def _length(self, done: Mapping[int, int], in_time: list[int], needed: list[int]) -> int:
        """Return the microseconds from a round's start to its end.

        It ends with the last needed reply if no further one is waited for, else at the deadline, or
        when the server notices that jobs are lost.
        """
        last = max((done[k] for k in needed), default=0)
        if len(needed) < len(in_time) or (needed and len(in_time) == len(self.asked)):
            return last
        if self.config.run.per_round and len(needed) == self.config.run.per_round:
            return last
        if self.deadline is not None:
            return self.deadline
        notice = int(self.settings.notice * SECOND)
        missing = self.asked.keys() - done.keys()
        return max([last, *(self.lost.get(k, 0) + notice for k in missing)])

    def add_second(self, replies: Sequence[tuple[Client, Reply]], moved: Moved) -> None:
        """Add the jobs of a second exchange, for which a round waits."""
        if self.on and replies and not self.private:
            start = self.end
            jobs = [(client, self.job_of(client, reply, moved)) for client, reply in replies]
            self.end = max(self._add(client, job, start) for client, job in jobs)

    def add_scores(self, clients: Sequence[Client], moved: Moved) -> None:
        """Add the communication of clients' scores, with ``clock.scores``."""
        if self.on and self.settings.scores and moved:
            jobs = [(client, Job(*moved[client.k])) for client in clients if client.k in moved]
            self.end += max(self._time(client, job).micros for client, job in jobs)

    def close(self, entry: Entry) -> None:
        """End the round: add the server's step, and write the times to the entry."""
        if not self.on or not entry.round:
            return
        if self.settings.server:
            of_server = self.devices.named(self.settings.server)
            job = Job(operations=entry.flops.get("server", 0))
            rest = time_of(job, of_server, global_spec(self.task), 0.0)
            self.end += math.ceil(round(rest.work * SECOND, 3))
        energies = [time.energy(self.devices.of(k)) for k, time in self.spent.items()]
        known = [energy for energy in energies if energy is not None]
        entry.clock = ClockTime(
            start=self.start / SECOND,
            end=self.end / SECOND,
            clients={k: time.micros / SECOND for k, time in sorted(self.spent.items())},
            late=sorted(self.late),
            jobs=dict(sorted(self.jobs.items())),
            energy=round(math.fsum(known), 6) if known and len(known) == len(energies) else None,
        )
        self.add(entry)

    def add(self, entry: Entry) -> None:
        """Continue after a complete round of the journal."""
        if entry.clock is not None:
            self.now = round(entry.clock.end * SECOND)
            self.predictor.newest |= {k: Job(*job) for k, job in entry.clock.jobs.items()}

    # Jobs.

    def job_of(self, client: Client, reply: Reply, moved: Moved) -> Job:
        """Return what a client's job moved and computed, by its reply."""
        steps, operations = (int(reply.metrics.get(name, 0)) for name in (STEPS, costs.FLOPS))
        return Job(*moved[client.k], steps, operations)

    def _add(self, client: Client, job: Job, start: int) -> int:
        """Add a client's job of an exchange that began at ``start``; return the job's end."""
        # A second exchange may have to wait, and the round waits for it.
        interrupted: Interrupted | None = None if start == self.start else "paused"
        end, done = self.end_of(client, job, start, *self._name, interrupted=interrupted)
        self.spend(client, job, *self._name)
        if not done:
            self.lost[client.k] = end - self.start
        return end

    def spend(self, client: Client, job: Job, *name: str | int) -> None:
        """Count what a client's job moved and computed, and its time, in this round."""
        k, time = client.k, self._drawn(client, job, *name)
        before = self.spent.get(k, Time(0.0, 0.0))
        self.jobs[k] = self.jobs.get(k, Job()).plus(job)
        self.spent[k] = Time(before.communication + time.communication, before.work + time.work)

    def end_of(
        self,
        client: Client,
        job: Job,
        start: int,
        *name: str | int,
        interrupted: Interrupted | None = None,
    ) -> tuple[int, bool]:
        """Return when a job of ``start`` ends, and whether it is complete then.

        ``name``: of its random streams, after the client; ``interrupted``: as in [clock].
        """
        micros = self._drawn(client, job, *name).micros
        if (trace := self.devices.trace(client.k)) is None:
            return start + micros, True
        begin = trace.next_on(start)
        if begin is None:
            return start, False
        return trace.finish(begin, micros, interrupted or self.settings.interrupted)

    def _drawn(self, client: Client, job: Job, *name: str | int) -> Time:
        """Return the time of a job with its random factors."""
        factors = Factors.drawn(self.settings, self.task.seed, client.k, *name)
        return self._time(client, job, factors)

    def predicted_job(self, client: Client) -> Job:
        """Return the predicted job of a client with full work."""
        return self.predictor.job(client.k, client.architecture, client.n)

    def _time(self, client: Client, job: Job, factors: Factors = EXACT) -> Time:
        size = bytes_of_step(self.config.train, self.task.parameters(client.architecture))
        return time_of(job, self.devices.of(client.k), client.architecture, size, factors)
