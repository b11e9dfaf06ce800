"""The clients' part of asynchronous rounds: send jobs, and take updates until a step has K.

A client is idle only when its update has left the buffer. So no client is twice in a step, and the
rounds of a client's requests grow. Free slots are filled with idle clients, which get the newest
version. The order of events is that of the virtual clock (``by_clock.py``), that of real arrivals,
or that of another run's journal (``by_arrival.py``).

Deviation: FedBuff may select a client whose update is in the buffer; here it waits for the step.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

from flwr.app import Message

from common import methods, seeds
from common.exchange.protocol import ModelReply, ModelRequest, Reply, Request
from common.exchange.records import StateDict
from common.flower.rpc import over_grpc
from common.journal import ON_CLOCK, Arrivals, Failure, JobEvent, JobEventKind
from common.settings.facts import AS_SENT
from server_app import costs
from server_app.aggregation.staleness import Discount
from server_app.buffered.jobs import InFlight, Outcome, Requests
from server_app.clock.job import SECOND, Job
from server_app.memory import sending
from server_app.messaging import sanity
from server_app.messaging.census import POLL
from server_app.messaging.exchange import Inbox
from server_app.method import Client, Method, Replies
from server_app.run import Run
from server_app.stopped import Stopped

JOB = "job"  #: name of a job's random streams on the clock, before its number
_, _, UNNEEDED, STALE = ON_CLOCK
MOST = 20  #: failures of a step, as a multiple of the roster, with which a run ends


class Buffered(ABC):
    """Jobs in flight and the buffer of updates of one run. A subclass decides the order of events.

    ``renew(t)``: updates the members, and adds their events to the entry of round t.
    """

    def __init__(self, run: Run, renew: Callable[[int], None]) -> None:
        """Raise ``ValueError`` if the method cannot say what the newest weights of a client are."""
        half, group = type(run.method), methods.facts(run.config.run.method).asynchronous
        self.as_sent = group in AS_SENT
        overrides = half.current is not Method.current or half.rebased is not Method.rebased
        if not (self.as_sent or overrides):
            raise ValueError(
                f'method = "{run.config.run.method}": asynchronous = "{group}" needs the method '
                f"`current` or `rebased` in {half.__name__}"
            )
        self.run, self.renew, self.settings = run, renew, run.config.buffer
        self.requests = Requests(run.record.folder)
        self.jobs: dict[int, InFlight] = {}  #: in flight, by client
        self.idle: dict[int, int] = {}  #: when a client became idle, in µs; 0 if it never worked
        self.number = 0  #: of the next job
        self.buffer: dict[int, tuple[InFlight, Reply | None, int]] = {}
        """Job, update and time of arrival by client, in the order of arrival. Under [privacy] an
        update that is missing or refused counts as a zero update (None)."""
        self._outcomes: dict[int, Outcome] = {}  #: of jobs in flight, if they are known
        self._arrived: dict[int, Message | Failure] = {}  #: not opened yet, by client
        self._again: list[InFlight] = []  #: jobs of a checkpoint, not sent yet
        self._kept: list[InFlight] = []  #: jobs that the end of the run has dropped
        self._repeatable: list[dict[int, int]] = []
        """Rounds of the jobs in flight at the kept checkpoints, which may be sent again, by
        client."""
        self._events: list[JobEvent] = []  #: since the last step
        self._online: set[int] = set()  #: nodes when the members were last updated here

    @property
    @abstractmethod
    def now(self) -> int:
        """Time in µs since the run began."""

    @abstractmethod
    def _next(self, t: int) -> None:
        """Fill free slots, and take the next event, or wait for a client that can train."""

    def _available(self, k: int) -> int | None:
        """Return when client k's device is available, in µs; None: never again."""
        return 0

    def _starts(self, job: InFlight) -> bool:
        """Set a new job's time if it is known; return whether the client gets the job."""
        return True

    def _loss(self, t: int, job: InFlight) -> Failure | None:
        """Return why a job counts as lost in round t, whatever its client replied, or None."""
        return None

    @cached_property
    def inbox(self) -> Inbox:
        """Jobs that clients have, and what has arrived."""
        return self.run.messenger.channel.inbox(self.run.grid)

    def collect(self, t: int) -> None:
        """Send jobs and take arrivals until the buffer has K: the replies of round t.

        Raises ``Stopped`` if too few clients are left.
        """
        run = self.run
        run.clock.restart((t,), run.clock.now)
        self._resting = set[int]()  #: clients that failed since the last step
        self._request: Callable[[Client], Request] | None = None
        per_round, roster = run.config.run.per_round, run.method.roster_size
        self.size, self.concurrency = self.settings.sizes(per_round, roster)
        with sending(over_grpc(run.grid)):
            self._send_again(t)
            while len(self.buffer) < self.size:
                self._next(t)
                if len(self.buffer) == self.size:
                    self._refuse()
        self._take_step()

    # Events.

    def _idle(self, t: int) -> list[tuple[int, Client]]:
        """Return the idle clients, the longest idle first, each with the time of its availability.

        A client that failed is not among them before the next step.
        """
        run, not_idle = self.run, {*self.jobs, *self.buffer, *self._resting}
        not_idle |= run.membership.missed
        clients = [c for c in run.trusted() if c.k not in not_idle]
        clients = [c for c in clients if run.method.selection.allows(c.info)]
        clients.sort(key=lambda c: (self.idle.get(c.k, 0), c.k))
        times = [(self._available(client.k), client) for client in clients]
        return [(time, client) for time, client in times if time is not None]

    def _arrive(self, t: int, job: InFlight) -> None:
        """Take a job's reply into the buffer, or record its failure."""
        run, k, client = self.run, job.k, self.run.membership.known[job.k]
        outcome = self._outcome(job) if job.is_sent else Outcome(None, None, Job())
        reply, failure = outcome.reply, self._loss(t, job) or outcome.failure
        self._note("arrived" if failure is None or run.private else "lost", job)
        run.messenger.channel.receive(k)
        del self.jobs[k]
        self._outcomes.pop(k, None)
        if reply is not None or run.private:
            self._spend(client, job, outcome.counts)
        if failure is None and 0 < self.settings.max_staleness < t - job.t:
            failure = Failure(k=k, round=t, kind=STALE, reason=f"stale: {t - job.t} versions")
        if failure is None or run.private:
            self.buffer[k] = job, reply if failure is None else None, self.now
        if failure is not None:
            self._fail(failure)
            if reply is not None:
                costs.of_clients(run.entry, run.config.run, [(client, reply)])

    def _fail(self, failure: Failure) -> None:
        """Record a failure; its client is idle unless it is in the buffer."""
        run, k = self.run, failure.k
        failures = run.entry.failures = [*run.entry.failures, failure]
        if len(failures) > MOST * run.method.roster_size:
            have = f"{len(failures)} jobs failed, and {len(self.buffer)} updates have arrived"
            raise Stopped(f"round {failure.round}: {have}; client {k}: {failure.reason}")
        if k not in self.buffer:
            self.idle[k] = self.now
            if failure.kind in ON_CLOCK:
                run.clock.late.append(k)
            else:
                self._resting.add(k)

    def _refuse(self) -> None:
        """Remove updates with impossible numbers from the buffer (``sanity.py``)."""
        run, load = self.run, self.requests.load
        jobs = {k: job for k, (job, reply, _) in self.buffer.items() if reply is not None}
        run.method.sent = {k: load(job.request) for k, job in jobs.items()}
        for failure in sanity.refused(run.entry, run.method, self._good()):
            if run.private:
                job, _, arrival = self.buffer[failure.k]
                self.buffer[failure.k] = job, None, arrival
            else:
                del self.buffer[failure.k]
            self._fail(failure)

    def _good(self) -> list[tuple[Client, Reply]]:
        """Return the valid updates in the buffer, in order of k."""
        known, updates = self.run.membership.known, sorted(self.buffer)
        pairs = ((known[k], self.buffer[k][1]) for k in updates)
        return [(client, reply) for client, reply in pairs if reply is not None]

    def _wait(self, t: int) -> None:
        """Wait for clients if fewer than K take part and no event is due.

        Raises ``Stopped`` after ``buffer.wait`` seconds, or if all clients failed.
        """
        run, start = self.run, time.monotonic()
        have = f"{len(self.buffer)} of buffer.size = {self.size} updates have arrived"
        ended = len(self.buffer) + len(run.entry.failures)
        sanity.check_before(run.entry, run.before, run.architectures, ended)
        while not self._idle(t):
            if len(run.clients) >= self.size:
                first = next((f for f in run.entry.failures if f.k in self._resting), None)
                why = f"; client {first.k}: {first.reason}" if first else ""
                raise Stopped(f"round {t}: {have}, and no other client can train{why}")
            if time.monotonic() - start > self.settings.wait:
                raise Stopped(
                    f"round {t}: {have}, {len(run.clients)} clients take part, and no other came "
                    f"within buffer.wait = {self.settings.wait:g} s"
                )
            time.sleep(POLL)
            self._renewed(t, again=True)

    def _renewed(self, t: int, *, again: bool = False) -> bool:
        """Update the members if nodes have come or gone; return whether they have.

        ``again``: also if a node is neither a member nor ignored, since its census failed.
        """
        online, membership = {*self.run.grid.get_node_ids()}, self.run.membership
        nodes = {client.node for client in membership.members.values()}
        known = not again or online <= nodes | membership.strangers.keys()
        if known and online == self._online:
            return False
        self._online = online
        self.renew(t)
        self.run.status.enter(t, "clients")
        return True

    # Jobs.

    def _fill(self, t: int) -> None:
        """Send jobs with the newest version to idle clients, as long as slots are free."""
        run, jobs = self.run, list[InFlight]()
        while len(self.jobs) < self.concurrency:
            ready = [client.info for time, client in self._idle(t) if time <= self.now]
            rng = seeds.rng(run.task.seed, "select", self.number)
            chosen = run.method.selection.draw(ready, rng, t, 1)
            if not chosen:
                break
            jobs.append(self._job(t, chosen.pop()))
        self._send(t, jobs)

    def _job(self, t: int, k: int) -> InFlight:
        """Return a new job of client k in round t, in flight from now on."""
        job = self.jobs[k] = InFlight(number=self.number, k=k, t=t, start=self.now)
        self.number += 1
        self._note("sent", job)
        return job

    def _note(self, kind: JobEventKind, job: InFlight) -> None:
        self._events.append((kind, job.k, job.version))

    def _send(self, t: int, jobs: list[InFlight]) -> None:
        """Send jobs, but for those that are lost before a client has them."""
        run, requests = self.run, dict[int, Request]()
        for job in jobs:
            job.is_sent = self._starts(job)
            if not job.is_sent:
                continue
            client = run.membership.known[job.k]
            with costs.of_server(run.entry, run.config.run):
                requests[job.k] = self._newest(t)(client).repeatable(self._oldest(t, job.k))
            experiment = run.messenger.experiment
            job.request = self.requests.keep(t, requests[job.k], experiment)
        self._post(t, requests)

    def _oldest(self, t: int, k: int) -> int:
        """Return the oldest round that client k may have to repeat, if its store would forget it.

        0: it need not keep more than the rounds after t - ``keep`` and the state before them.
        """
        oldest = min((jobs[k] for jobs in self._repeatable if k in jobs), default=t)
        return oldest if oldest <= t - self.run.config.run.keep else 0

    def _newest(self, t: int) -> Callable[[Client], Request]:
        """Return the requests with the newest version, as a function of the client."""
        if self._request is None:
            request = self.run.method.requests(t)
            self._request = request if callable(request) else lambda client: request
        return self._request

    def _post(self, t: int, requests: dict[int, Request]) -> None:
        """Send requests of round t by client."""
        messenger, known = self.run.messenger, self.run.membership.known
        payloads = [(known[k], request) for k, request in requests.items()]
        messenger.channel.post(self.inbox, messenger.make_messages(t, "train", payloads), t)
        if payloads:
            self._poll()  # sends them

    def _spend(self, client: Client, job: InFlight, counts: Job) -> None:
        """Count a job's time and energy; the client's next one is predicted by it."""
        clock = self.run.clock
        if not clock.on:
            return
        clock.spend(client, counts, JOB, job.number)
        clock.jobs[client.k] = clock.predictor.newest[client.k] = counts

    # Replies.

    def _outcome(self, job: InFlight) -> Outcome:
        """Wait for what comes of a job."""
        if job.k in self._outcomes:
            return self._outcomes[job.k]
        run, client, arrived = self.run, self.run.membership.known[job.k], self._await(job.k)
        reply, failure = None, None
        if isinstance(arrived, Message):
            method = run.method
            method.sent = {job.k: self.requests.load(job.request)}
            # the node that has replied is the one that was asked; the client may have another now
            asked = Client(client.info, arrived.metadata.src_node_id)
            good, refused = run.messenger.open(
                job.t, [arrived], method.reply_type, [asked], method.check
            )
            reply, failure = (good[0][1], None) if good else (None, refused[0])
        else:
            failure = arrived
        counts = run.clock.predicted_job(client) if run.clock.on else Job()
        if run.clock.on and reply is not None and not run.private:
            counts = run.clock.job_of(client, reply, run.messenger.moved)
        if failure is not None:
            failure = failure.model_copy(update={"round": run.entry.round})
        self._outcomes[job.k] = Outcome(reply, failure, counts)
        return self._outcomes[job.k]

    def _await(self, k: int) -> Message | Failure:
        """Wait for client k's reply, or the failure of its job; keep what else arrives."""
        entry = self.run.entry
        while k not in self._arrived:
            self._poll()
            if k not in self._arrived:
                self.inbox.pause()
        if not self.run.private and k in self.inbox.seconds:
            entry.measured = {**entry.measured, k: round(self.inbox.seconds[k], 6)}
        return self._arrived.pop(k)

    def _poll(self) -> None:
        """Send messages, and take what has arrived."""
        channel, entry = self.run.messenger.channel, self.run.entry
        replies, failures = channel.arrived(self.inbox)
        self._arrived.update(replies)
        for failure in failures:
            if failure.k in self.inbox.jobs:  # the channel has sent the message once more
                again = failure.model_copy(update={"round": entry.round})
                entry.failures = [*entry.failures, again]
            else:
                self._arrived[failure.k] = failure
        channel.waiting()

    # The step.

    def _take_step(self) -> None:
        """Hand the buffer over as the replies of the round, and write it to the journal."""
        run, entry = self.run, self.run.entry
        jobs = {k: job for k, (job, _, _) in self.buffer.items()}
        run.good = self._good()
        entry.selected = sorted({k for kind, k, _ in self._events if kind == "sent"})
        entry.failures = sorted(entry.failures, key=lambda failure: failure.k)
        self._stale = {k: entry.round - job.t for k, job in jobs.items()}
        entry.buffer = Arrivals(
            events=self._events,
            arrived=[(k, job.version) for k, job in jobs.items()],
            times=[time / SECOND for _, _, time in self.buffer.values()],
            staleness=list(self._stale.values()),
            in_flight=len(self.jobs),
        )
        self.idle.update(dict.fromkeys(self.buffer, self.now))
        self.buffer, self._events = {}, []

    def replies(self) -> Replies[Reply]:
        """Return the replies of the step as updates of the newest version, with their weights.

        Under [privacy] the weights apply after an update is clipped.
        """
        run, method, settings = self.run, self.run.method, self.settings
        stale = self._stale.items()
        method.discounts = {k: settings.discount(age) for k, age in stale}
        if (cache := method.cache) is not None:
            cache.retain({client.k for client in run.trusted()})
        rebased = [(client, self._rebased(client, reply)) for client, reply in run.good]
        if cache is not None:
            pairs = [(method.sent[client.k], reply) for client, reply in run.good]
            cache.put(run.entry.round, {reply.k: _weights(sent, reply) for sent, reply in pairs})
        return Replies.of(rebased, run.good)

    def _rebased(self, client: Client, reply: Reply) -> Reply:
        method, mixes = self.run.method, self.settings.mixing > 0
        s = 1.0 if self.run.private else method.discounts[client.k]
        fresh = s == 1 and (mixes or self._stale[client.k] == 0)
        if self.as_sent or (fresh and method.cache is None):
            return reply
        plus = method.cache.correction(client.k, method.roster_size) if method.cache else {}
        return method.rebased(client, reply, Discount(s, mixes=mixes, plus=plus))

    def finish(self) -> None:
        """Drop the jobs in flight at the end of the run; their costs count."""
        run, entry = self.run, self.run.entry
        self._kept = [*self.jobs.values()]
        for job in self._kept:
            if not job.is_sent:
                continue
            client, outcome = run.membership.known[job.k], self._outcome(job)
            run.messenger.channel.receive(job.k)
            if outcome.reply is not None:
                self._spend(client, job, outcome.counts)
                costs.of_clients(entry, run.config.run, [(client, outcome.reply)])
            why = "not needed: the run has ended"
            run.clock.late.append(job.k)
            failure = Failure(k=job.k, round=entry.round, kind=UNNEEDED, reason=why)
            entry.failures = [*entry.failures, outcome.failure or failure]
            if outcome.failure is not None and entry.buffer is not None:
                entry.buffer.events.append(("lost", job.k, job.version))
                self._kept = [kept for kept in self._kept if kept.k != job.k]
        self.jobs = {}

    # Membership, checkpoints and undone rounds.

    def drop(self, k: int) -> None:
        """Drop the job and the update of a client that has left."""
        held = {n: job for n, (job, _, _) in self.buffer.items()} | self.jobs
        if k in held:
            self._note("lost", held[k])
        for known in (self.jobs, self.buffer, self._outcomes, self._arrived):
            known.pop(k, None)
        self._again = [job for job in self._again if job.k != k]
        self.inbox.forget(k)
        self.idle[k] = self.now

    def settle(self) -> None:
        """Wait for all jobs in flight, so that no client is busy when they are sent again."""
        for job in self.jobs.values():
            if job.is_sent and job.k not in self._outcomes and job not in self._again:
                self._await(job.k)

    def state(self) -> str:
        """Return what a checkpoint keeps, as JSON."""
        jobs = [*self.jobs.values()] or self._kept
        keep = self.run.config.run.keep
        self._repeatable = [*self._repeatable, {job.k: job.t for job in jobs}][-keep:]
        fields = {"number": self.number, "idle": self.idle, "repeatable": self._repeatable}
        return json.dumps({**fields, "jobs": [job.model_dump() for job in jobs]})

    def release(self) -> None:
        """Delete the requests that no checkpoint needs; call it when the newest is written."""
        jobs = [*self.jobs.values()] or self._kept
        self.requests.release([job.request for job in jobs], self.run.config.run.keep)

    def restore(self, state: str, excluded: frozenset[int]) -> None:
        """Go on after a checkpoint: its jobs are sent again, but for those of ``excluded``."""
        saved = json.loads(state)
        self.number, self.idle = saved["number"], {int(k): at for k, at in saved["idle"].items()}
        past = saved["repeatable"]
        self._repeatable = [{int(k): t for k, t in jobs.items()} for jobs in past]
        jobs = [InFlight.model_validate(job) for job in saved["jobs"]]
        self.jobs = {job.k: job for job in jobs}
        for k in excluded & self.jobs.keys():
            self._note("lost", self.jobs.pop(k))
        self._again = [*self.jobs.values()]

    def _send_again(self, t: int) -> None:
        """Send the jobs of a checkpoint; those of clients that take no longer part are dropped."""
        again, self._again = self._again, []
        members, traffic = self.run.membership.members, self.run.traffic
        counted = dict(traffic)  # the journal has their bytes already
        for job in again:
            if job.k not in members:
                self.drop(job.k)
            elif job.is_sent:
                self.requests.kind = type(self._newest(t)(members[job.k]))
                self._post(job.t, {job.k: self.requests.load(job.request)})
        traffic.clear()
        traffic.update(counted)


def _weights(sent: Request, reply: Reply) -> tuple[StateDict, StateDict]:
    """Return the weights that a client was sent and those that it trained."""
    assert isinstance(sent, ModelRequest) and isinstance(reply, ModelReply)
    return sent.w, reply.w
