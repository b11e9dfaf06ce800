"""Membership: which clients of the roster take part now, and the events that change it.

The roster is fixed: the client numbers 0 to N - 1 with their architectures. N counts in formulas,
in the partition and in privacy accounting. The members are the clients that take part. A run
without ``min-clients``, ``leave-after`` and ``membership`` starts with the whole roster, and only
the operator (``fedmosaic remove``) changes that.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import final

from flwr.serverapp import Grid

from common.errors import LONGEST, first_line
from common.exchange.protocol import ClientInfo
from common.journal import Change, Event, Failure
from common.training.task import Task
from server_app.messaging import census
from server_app.messaging.messenger import Messenger
from server_app.messaging.readmission import Readmission
from server_app.messaging.schedule import Schedule
from server_app.method import Client
from server_app.stopped import Stopped
from server_app.storage import removals
from server_app.storage.checkpoint import Checkpoint

Admit = Callable[[Client], None]
"""Function that raises ``ValueError`` for a client that does not suit the method."""

TRIES = 3  #: rounds before which a node without a reply is asked, until it is ignored
MEANWHILE = 10.0  #: seconds for the reply to a census while other clients train

log = logging.getLogger("flwr.fedmosaic")


@final
class Membership:
    """The clients of one run: its roster, the members with their nodes, and new events."""

    def __init__(self, messenger: Messenger, grid: Grid, task: Task) -> None:
        self.messenger, self.grid, self.task = messenger, grid, task
        self.run = messenger.config.run
        self.roster: dict[int, str] = {}  #: architecture of every client; its length is N
        self.members: dict[int, Client] = {}
        self.known: dict[int, Client] = {}  #: the newest information of each client
        self.met: set[int] = set()  #: clients that were members before
        self.absences: dict[int, int] = {}  #: rounds in a row without its node, by client
        self.strangers: dict[int, str] = {}  #: why a node is ignored, by node
        self.claims: dict[int, int] = {}  #: client that an ignored node may become later, by node
        self.missed: frozenset[int] = frozenset()  #: members without a reply, by the schedule
        self.events: list[Event] = []  #: of the next round
        self.busy: Set[int] = frozenset()  #: clients that train in asynchronous rounds
        self._counted: dict[int, int] = {}  #: round before which a client was last found absent
        self._late = Counter[int]()  #: census requests without a reply, by node
        self._doubtful: set[int] = set()  #: members whose stored state may be lost
        self._readmission = Readmission(messenger, grid)

    @property
    def clients(self) -> list[Client]:
        """The members, in order of k."""
        return [self.members[k] for k in sorted(self.members)]

    def fields(self) -> dict[str, object]:
        """Return the fields of a checkpoint that ``restore`` needs."""
        return {
            "nodes": {client.k: client.node for client in self.clients},
            "roster": self.roster,
            "met": sorted(self.met - self.members.keys()),
            "absences": self.absences,
        }

    # Before the first round.

    def begin(self, saved: Checkpoint | None) -> None:
        """Take the census, of a new run or of one that resumes from ``saved``.

        A member of ``saved`` that is not connected, or has no valid reply, leaves. Raises
        ``Stopped`` if too few clients take part, or if a client has lost its state and the
        membership is fixed.
        """
        run = self.run
        size = run.clients or (len(saved.roster or saved.nodes) if saved is not None else 0)
        result = census.take_census(self.grid, self.messenger, self.task, size)
        if run.min_clients > result.size:
            raise Stopped(f"min-clients = {run.min_clients} is more than the {result.size} clients")
        self.strangers = result.strangers
        self.known = {client.k: client for client in result.clients}
        self.roster = {k: self._configured(k) for k in range(result.size)}
        self.roster |= {} if saved is None else saved.roster
        self.roster |= {k: client.architecture for k, client in self.known.items()}
        self.schedule = None
        if run.membership:
            replays = self.messenger.config.replays_jobs
            self.schedule = Schedule(Path(run.membership), result.size, replays=replays)
        absent = self.schedule.absent if self.schedule else frozenset[int]()
        present = set(self.roster) - absent
        if saved is not None:
            present = set(saved.nodes)
            self.met, self.absences = {*saved.met, *present}, dict(saved.absences)
        self.members = {k: self.known[k] for k in sorted(present & self.known.keys())}
        self.met |= self.members.keys()
        for k, node in sorted(saved.nodes.items() if saved is not None else ()):
            if k not in self.members:
                why = self.strangers.get(node, "not connected when the run resumed")
                self._add(k, "left", why)
        if self._fixed:
            infos = [client.info for client in self.clients]
            census.check_kept(infos, self.messenger.kept, self.messenger.after)
        self._doubtful = {k for k, client in self.members.items() if self._lost(client.info)}

    def _configured(self, k: int) -> str:
        """Return the architecture that the experiment has for client k."""
        config = self.messenger.config
        node = config.nodes.get(k)
        return (node and node.model) or config.fleet[k % len(config.fleet)]

    def restore(self, saved: Checkpoint) -> None:
        """Restore the members after the round of a checkpoint of this process."""
        self.members = {k: self.known[k] for k in saved.nodes if k in self.known}
        self.met = {*saved.met, *saved.nodes}
        self.absences, self.events = dict(saved.absences), []

    @property
    def _fixed(self) -> bool:
        """Whether the members are the whole roster, always."""
        run = self.run
        elastic = run.min_clients or run.leave_after or self.schedule is not None
        return not elastic and self.members.keys() == self.roster.keys()

    # Before each round.

    def renew(self, t: int, admit: Admit) -> tuple[list[Event], list[Failure]]:
        """Update the members before round t; return the events, and failures for the journal.

        Raises ``Stopped`` if fewer than ``min-clients`` take part, for ``wait`` seconds.
        """
        self.messenger.after, failures = t - 1, list[Failure]()
        removed = removals.read(Path(self.run.out))
        for k in sorted(self.members.keys() & removed):
            self._leave(k, "removed by the operator")
        if self.schedule is not None:
            self._replay(t, admit)
        elif self._fixed:
            clients, failures = self._readmission.renew(t, self.clients)
            self.members = {client.k: client for client in clients}
            self.known |= self.members
        else:
            self._follow(t, admit, removed)
        events, self.events = self.events, []
        for event in events:
            log.warning("round %d: client %d %s: %s", t, event.k, event.kind, event.cause)
        return events, failures

    def after_round(self, failed: set[int]) -> None:
        """Take a new census of these clients before the next round: their state may be lost."""
        self._doubtful |= failed & self.members.keys()

    def _replay(self, t: int, admit: Admit) -> None:
        """Apply the events of the schedule before round t."""
        assert self.schedule is not None
        for event in self.schedule.events.get(t, []):
            if event.kind == "left":
                self._leave(event.k, event.cause)
                continue
            node, forget = self.known[event.k].node, event.kind == "replaced"
            replies, failed = self._ask([node], t, forget=forget)
            info = replies.get(node)
            if info is not None:
                why = self._why_not(info, node, frozenset(), admit)
            else:
                why = failed[node].reason if node in failed else "it did not answer"
            if info is None or why:
                raise Stopped(f"round {t}: client {event.k} has not {event.kind}: {why}")
            self._enter(Client(info, node), event.cause, event.kind)
        self.missed = frozenset(self.schedule.missed.get(t, ())) & self.members.keys()

    def _follow(self, t: int, admit: Admit, removed: frozenset[int]) -> None:
        """Follow the connected nodes: members that left, newcomers, and clients that return."""
        start, first = time.monotonic(), True
        while True:
            online = set(self.grid.get_node_ids())
            self._look(t, online, admit, removed)
            if first:
                self._count_absences(t, online)
            first, fewest = False, max(self.run.min_clients, 1)
            if len(self.members) >= fewest:
                return
            if time.monotonic() - start > self.run.wait:
                raise Stopped(
                    f"round {t}: {len(self.members)} of {len(self.roster)} clients take part, "
                    f"min-clients = {fewest}, and no other came within wait = {self.run.wait:g} s"
                )
            time.sleep(census.POLL)

    def _look(self, t: int, online: set[int], admit: Admit, removed: frozenset[int]) -> None:
        """Take a census of new nodes if there is a free place, and of doubtful members."""
        for node in [*self.strangers]:
            k = self.claims.get(node)
            if node not in online or (k is not None and self._is_free(k, online, removed)):
                del self.strangers[node]
                self.claims.pop(node, None)
        nodes, before = {client.node: k for k, client in self.members.items()}, self._doubtful
        doubtful = self._doubtful & self.members.keys() - self.busy  # a busy one replies late
        asked = {self.members[k].node for k in doubtful} & online
        gone = {k for node, k in nodes.items() if node not in online}
        free = self.roster.keys() - self.members.keys() - removed | gone
        if free:
            asked |= online - nodes.keys() - self.strangers.keys()
        replies, failed = self._ask(sorted(asked), t)
        self._doubtful = gone | {nodes[n] for n in failed.keys() & nodes.keys()}
        self._doubtful |= before & self.busy
        for node, failure in failed.items():
            late = failure.kind == "late"
            self._late[node] += late
            # while others train, a node may be busy with a job that the server has given up
            patient = bool(self.busy) or self._late[node] < TRIES
            again = failure.kind == "unreachable" or (late and patient)
            if node not in nodes and not again:
                self._ignore(node, failure.reason)
        for node, info in replies.items():
            if why := self._why_not(info, node, removed, admit, online):
                self._ignore(node, why)
                if not self._is_free(info.k, online, removed):
                    self.claims[node] = info.k
            else:
                self._enter(Client(info, node))

    def _is_free(self, k: int, online: Set[int], removed: Set[int]) -> bool:
        """Return whether client k is not removed, and has no node that is connected."""
        return k not in removed and (k not in self.members or self.members[k].node not in online)

    def _ask(
        self, nodes: list[int], t: int, *, forget: bool = False
    ) -> tuple[dict[int, ClientInfo], dict[int, Failure]]:
        """Take a census of these nodes; return by node the information or the failure."""
        if not nodes:
            return {}, {}
        size = len(self.roster)
        sent = self.messenger.census_messages(nodes, size, forget=forget)
        if forget:  # so that no later census request repeats it
            self.messenger.census_messages([], size)
        timeout = min(self.run.timeout, self.run.wait)
        timeout = min(timeout, MEANWHILE) if self.busy else timeout
        arrived, lost = self.messenger.channel.exchange(self.grid, sent, timeout, t)
        failed = {nodes[failure.k]: failure for failure in lost if failure.k not in arrived}
        infos: dict[int, ClientInfo] = {}
        for i, reply in arrived.items():
            try:
                infos[nodes[i]] = self.messenger.info(nodes[i], reply)
            except ValueError as error:
                failed[nodes[i]] = Failure(k=i, round=t, reason=str(error), kind="refused")
        return infos, failed

    def _why_not(
        self,
        info: ClientInfo,
        node: int,
        removed: Set[int],
        admit: Admit,
        online: Set[int] = frozenset(),
    ) -> str:
        """Return why a node must not become the client that it claims to be; empty if it may."""
        k, run = info.k, self.run
        limits = len(self.roster), self.messenger.experiment, self.task, run.max_samples
        if why := census.why_not(info, *limits):
            return why
        if k in removed:
            return f"client {k} was removed by the operator"
        member, known = self.members.get(k), self.known.get(k)
        if member is not None and member.node != node and member.node in online:
            return f"the place of client {k} belongs to node {member.node}"
        if known is not None and known.node != node and not run.rebind:
            return f"the place of client {k} belongs to node {known.node} (rebind = false)"
        if known is not None and not info.equals(known.info):
            return f"client {k} has other information than node {known.node} had in the census"
        if any(info.public != client.info.public for client in self.clients):
            return f"client {k} has another public set than the others"
        try:
            admit(Client(info, node))
        except ValueError as error:
            return str(error)
        return ""

    def _enter(self, client: Client, cause: str = "", kind: Change | None = None) -> None:
        """Make a client a member, with the event that this is, if it is one."""
        k, lost = client.k, self._lost(client.info)
        why = f"node {client.node} is connected"
        if lost:
            why, self.messenger.kept[k] = "it has lost its state", client.info.kept
        if k in self.members:
            kind = kind or ("replaced" if lost else None)
        else:
            kind = kind or ("joined" if k not in self.met else "replaced" if lost else "returned")
        self.members[k] = self.known[k] = client
        self.roster[k] = client.architecture
        self.met.add(k)
        self.absences.pop(k, None)
        if kind is not None:
            self._add(k, kind, cause or why)

    def _lost(self, info: ClientInfo) -> bool:
        """Return whether a client lacks state that the server relies on."""
        return info.kept < self.messenger.kept.get(info.k, 0)

    def _count_absences(self, t: int, online: set[int]) -> None:
        """Count the rounds before which a member is not connected; it leaves after too many."""
        for k, client in list(self.members.items()):
            if client.node in online:
                self.absences.pop(k, None)
                continue
            self.absences[k] = self.absences.get(k, 0) + (self._counted.get(k) != t)
            self._counted[k] = t
            if 0 < self.run.leave_after <= self.absences[k]:
                rounds = "1 round" if self.absences[k] == 1 else f"{self.absences[k]} rounds"
                self._leave(k, f"not connected before {rounds}")

    def _leave(self, k: int, cause: str) -> None:
        if self.members.pop(k, None) is not None:
            self.absences.pop(k, None)
            self._add(k, "left", cause)

    def _add(self, k: int, kind: Change, cause: str) -> None:
        event = Event(k=k, kind=kind, cause=first_line(cause, LONGEST))
        if kind == "joined":
            event.member = census.member(self.task, self.known[k])
        self.events.append(event)

    def _ignore(self, node: int, why: str) -> None:
        self.strangers[node] = why
        log.warning("node %d is ignored: %s", node, why)
