"""Send messages, and return a reply or a failure for each of them.

Flower's ``send_and_receive`` polls every three seconds; a round of small models takes less time.
Replies are matched by the id of their request: the source id of an error reply can be wrong.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import final

import grpc
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.errors import LONGEST, first_line, line
from common.exchange.records import count_bytes
from common.flower.rpc import HALFWAY, details, few_at_once, whole_by
from common.journal import Failure, FailureKind
from server_app.messaging.reply_files import ReplyStore
from server_app.stopped import Stopped

FIRST_POLL, LAST_POLL = 0.005, 0.1
WINDOW = 1000  #: messages that wait for a reply at once
PORTION = 1 << 26  #: approximate bytes of replies that are fetched together
LEAST = 1 << 20  #: lower bound of a reply's size in bytes, in the estimate of a portion
WRAPPED = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<'(.*)'>", re.DOTALL)
"""Flower's text of an exception that a ClientApp raised, with its class and message."""
LEFT = "Node Unavailable"  #: Flower's text for a node that is not connected
UNDELIVERED = "the message could not be delivered"
UNAVAILABLE = 3  #: Flower's error code for an expired message and for an incomplete reply
KINDS: Mapping[str, tuple[FailureKind, str]] = {
    "Error: (Node|Message|Reply Message) Unavailable": ("unreachable", "a node is not connected"),
    f".*{LEFT}": ("unreachable", ""),
    HALFWAY: ("late", HALFWAY),
    "FloatingPointError: training diverged": ("diverged", ""),
    "NoSession: ": ("no session", ""),
}
"""Kind and released reason of a failure by the beginning of an error reply's text, as regular
expressions. The texts are Flower's, and those of clients (``client_app/app.py``), which begin with
the exception's class."""
LATE = 30.0  #: seconds of ttl after the timeout: incomplete replies can delay complete ones

log = logging.getLogger("flwr.fedmosaic")


def exchange(
    grid: Grid,
    messages: dict[int, Message],
    timeout: float,
    t: int,
    window: int = WINDOW,
    store: ReplyStore | None = None,
    report: Callable[[int], None] = lambda done: None,
    seconds: dict[int, float] | None = None,
) -> tuple[dict[int, Message], list[Failure]]:
    """Send ``messages``, and return replies by client and failures, both in ascending order of k.

    ``messages``: by client; this function sets their ttl and drops large contents after sending.
    ``timeout``: seconds until a missing reply counts as lost. At most ``window`` messages wait for
    a reply at once, so that memory and polling do not grow with the number of clients. Each reply
    is moved to the ``store`` immediately; ``portion`` bounds how many are fetched together.
    ``report`` is called with the number of good replies after each fetch. ``seconds`` receives the
    time from sending to receiving each good reply, by client.

    Raises ``Stopped`` if the SuperLink fails while it receives the messages.
    """
    inbox = Inbox(grid, timeout, window, store)
    inbox.post(messages, t)
    while inbox.jobs:
        inbox.poll()
        report(len(inbox.replies))
        inbox.pause()
    if seconds is not None:
        seconds.update(inbox.seconds)
    return inbox.take()


@final
@dataclass
class _Job:
    """A message that has neither a reply nor a failure.

    ``messages``: the caller's, with this one; ``t``: its round; ``deadline``: for its reply;
    ``size``: bytes of its content; ``sent``: when it was sent, None before.
    """

    messages: dict[int, Message]
    t: int
    deadline: float
    size: int
    sent: float | None = None


@final
class Inbox:
    """Jobs in flight, of one round or of several, and what has arrived since it was taken.

    A client has one job at a time. A synchronous round posts all of them, and polls until none is
    left; an asynchronous one goes on posting while others are in flight.
    """

    def __init__(
        self, grid: Grid, timeout: float, window: int = WINDOW, store: ReplyStore | None = None
    ) -> None:
        self.grid, self.timeout, self.store = grid, timeout, store or ReplyStore()
        self.window = window
        self.jobs: dict[int, _Job] = {}  #: by client
        self.replies: dict[int, Message] = {}  #: good replies by client
        self.failures: list[Failure] = []
        self.seconds: dict[int, float] = {}  #: of each good reply, since its message was sent
        self._waiting: dict[str, int] = {}  #: clients without a reply, by message id
        self._unsent: deque[int] = deque()
        self._pause, self._most = FIRST_POLL, 0  #: seconds; how many replies are fetched together
        self.any_reply = False  #: whether the last poll brought a reply

    def post(self, messages: dict[int, Message], t: int) -> None:
        """Add messages of round t by client, to be sent by the next ``poll``."""
        sizes = {id(content): count_bytes(content) for content in _contents(messages)}
        deadline = time.monotonic() + self.timeout
        for k, message in messages.items():
            self.jobs[k] = _Job(messages, t, deadline, sizes[id(message.content)])
        self._unsent.extend(messages)
        self._pause = FIRST_POLL
        # replies are seldom larger than requests
        self._most = self._most or portion(next(iter(sizes.values()), 0))

    def poll(self) -> None:
        """Send messages, fetch the replies that have arrived, and give up on those that are late.

        A late reply has one more chance: an incomplete one may have delayed others.
        """
        now = time.monotonic()
        late = [k for k, job in self.jobs.items() if now >= job.deadline]
        self._send()
        self._receive()
        if self.any_reply:
            self._pause = FIRST_POLL
        for k in [k for k in late if k in self.jobs]:
            self._give_up(k)
        if late:
            self._unsent = deque(k for k in self._unsent if k in self.jobs)
            self._waiting = {id_: k for id_, k in self._waiting.items() if k in self.jobs}

    def pause(self) -> None:
        """Wait until the next poll, if a job is in flight.

        It is short after a new job or a reply, and longer and longer while none comes.
        """
        if self._waiting:
            time.sleep(self._pause)
            self._pause = min(1.5 * self._pause, LAST_POLL)

    def forget(self, k: int) -> None:
        """Drop client k's job: nothing waits for its reply any more."""
        self.jobs.pop(k, None)
        self._unsent = deque(k for k in self._unsent if k in self.jobs)
        self._waiting = {id_: k for id_, k in self._waiting.items() if k in self.jobs}

    def take(self) -> tuple[dict[int, Message], list[Failure]]:
        """Return and forget what has arrived: replies by client and failures, ascending in k."""
        replies = dict(sorted(self.replies.items()))
        failures = sorted(self.failures, key=lambda failure: failure.k)
        self.replies, self.failures = {}, []
        return replies, failures

    def _lose(self, k: int, reason: str, kind: FailureKind, released: str = "") -> None:
        """Record the failure of client k; for ``released`` see ``Failure``."""
        t = self.jobs.pop(k).t
        self.failures.append(Failure(k=k, round=t, reason=reason, kind=kind, released=released))

    def _send(self) -> None:
        """Send messages until ``window`` of them wait, several together, which takes less time."""
        # Wait until a tenth of the window is free, unless no replies come: a call to the SuperLink
        # for a single message costs as much as one for many.
        free = min(self.window - len(self._waiting), len(self._unsent))
        enough = free >= min(self.window // 10, len(self._unsent)) or not self.any_reply
        due = [self._unsent.popleft() for _ in range(free if enough else 0)]
        messages = {k: self.jobs[k].messages[k] for k in due}
        for message in messages.values():
            message.metadata.ttl = self.timeout + LATE
        ids = push(self.grid, messages.values(), self.jobs[due[0]].t) if due else []
        # An empty id: Flower did not accept the message.
        for (k, message), id_ in zip(messages.items(), ids, strict=True):
            job = self.jobs[k]
            job.sent = time.monotonic()
            # The metadata of a sent message is needed until its reply, the content is not.
            if job.size > LEAST:
                job.messages[k] = _without_content(message)
            if id_:
                self._waiting[id_] = k
            else:
                self._lose(k, UNDELIVERED, "unreachable", UNDELIVERED)

    def _receive(self) -> None:
        """Fetch the replies that have arrived, in portions of ``_most``."""
        ids, self.any_reply = list(self._waiting), False
        while ids:
            some, ids = ids[: self._most], ids[self._most :]
            deadline = min(self.jobs[self._waiting[id_]].deadline for id_ in some)
            arrived, unreadable = pull(self.grid, some, deadline, self.store)
            self.any_reply = self.any_reply or bool(arrived)
            for id_, reason in unreadable.items():
                self._lose(self._waiting.pop(id_), reason, "refused")
            for reply in arrived:
                k = self._waiting.pop(reply.metadata.reply_to_message_id, -1)
                if k >= 0:  # not a second reply to one message, nor one to an unknown message
                    self._keep(k, reply)

    def _keep(self, k: int, reply: Message) -> None:
        """Store client k's reply, or record the failure that it reports or is."""
        if reply.has_error() and _late(reply):
            self._lose(k, self._no_reply, "late", self._no_reply)
        elif reply.has_error():
            why = _reason(reply)
            self._lose(k, why, *kind_of(why))
        elif reply.metadata.src_node_id != self.jobs[k].messages[k].metadata.dst_node_id:
            why = "another node answered in its place"
            self._lose(k, why, "not authentic", why.replace("its", "a client's"))
        else:
            # Larger replies than expected: fetch fewer together from now on.
            size = count_bytes(reply.content)
            self._most = min(self._most, portion(size))
            self.store.keep(reply.content, size)
            self.replies[k], sent = reply, self.jobs.pop(k).sent
            self.seconds[k] = time.monotonic() - (sent or 0.0)

    def _give_up(self, k: int) -> None:
        """Record that client k has not replied in time, or was not asked."""
        if self.jobs[k].sent is not None:
            self._lose(k, self._no_reply, "late", self._no_reply)
        else:
            late = f"not asked within {self.timeout:g} s"
            self._lose(k, f"{late}, window = {self.window} others were waited for", "late", late)

    @property
    def _no_reply(self) -> str:
        return f"no reply within {self.timeout:g} s"


def _contents(messages: Mapping[int, Message]) -> Iterable[RecordDict]:
    """Return the distinct content objects of all messages."""
    return {id(message.content): message.content for message in messages.values()}.values()


def _without_content(message: Message) -> Message:
    """Return a copy of a message with empty content."""
    about = message.metadata
    return Message(
        RecordDict(), about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
    )


def portion(size: int) -> int:
    """Return how many replies of ``size`` bytes are fetched into memory together."""
    return max(PORTION // max(size, LEAST), 1)


def push(grid: Grid, messages: Iterable[Message], t: int) -> list[str]:
    """Send messages and return their ids; an id is empty if its message could not be delivered.

    Raises ``Stopped`` if the SuperLink fails meanwhile.
    """
    try:
        with few_at_once():
            return list(grid.push_messages(messages))
    except grpc.RpcError as error:
        reason = f"round {t}: the SuperLink failed while it took the messages"
        raise Stopped(f"{reason}: {details(error)[:LONGEST]}", released=reason) from error


def pull(
    grid: Grid, ids: list[str], deadline: float, store: ReplyStore
) -> tuple[list[Message], dict[str, str]]:
    """Return the replies to the message ids ``ids`` that have arrived, and reasons by id for
    replies that cannot be read.

    Wait until ``deadline`` for a reply of which a part has arrived, see ``whole_by``. If Flower
    cannot read one reply, it drops all replies of that call; then pull them one by one.

    Raises ``OSError`` naming the store's folder if that is full.
    """
    # Usually one call brings all of them.
    try:
        with whole_by(deadline, store.chunk_file):
            return list(grid.pull_messages(ids)), {}
    except grpc.RpcError:
        raise
    except Exception as error:
        log.exception("a reply cannot be read")
        cause = line(error, LONGEST, typed=True)
    if len(ids) == 1:
        return [], {ids[0]: f"its reply cannot be read: {cause}"}
    # One call for each: the readable replies are kept, and the others fail alone. Flower may have
    # lost a reply in the failed call above, and then gives an error reply in its place.
    arrived: list[Message] = []
    refused: dict[str, str] = {}
    for id_ in ids:
        replies, unreadable = pull(grid, [id_], deadline, store)
        refused |= unreadable
        for reply in replies:
            if reply.has_error():
                refused[id_] = f"lost where a reply cannot be read ({cause}): {_reason(reply)}"
            else:
                arrived.append(reply)
    return arrived, refused


def kind_of(reason: str) -> tuple[FailureKind, str]:
    """Return kind and released reason of a failure with the text of an error reply."""
    matching = (row for text, row in KINDS.items() if re.match(text, reason))
    return next(matching, ("client error", ""))


def _late(reply: Message) -> bool:
    """Return whether an error reply means that no part of a reply came before the ttl ended."""
    reason = reply.error.reason or ""
    return bool(reply.error.code == UNAVAILABLE and HALFWAY not in reason)


def _reason(reply: Message) -> str:
    """Return the first line of an error reply, with ``Name: text`` for a wrapped exception."""
    reason = reply.error.reason or f"error code {reply.error.code}"
    if wrapped := WRAPPED.fullmatch(reason):
        reason = ": ".join(wrapped.groups())
    return first_line(reason, LONGEST)
