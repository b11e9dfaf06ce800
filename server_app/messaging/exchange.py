"""Send messages, and return a reply or a failure for each of them.

Flower's ``send_and_receive`` polls every three seconds; a round of small models takes less time.
Replies are matched by the id of their request: the source id of an error reply can be wrong.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

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
) -> tuple[dict[int, Message], list[Failure]]:
    """Send ``messages``, and return replies by client and failures, both in ascending order of k.

    ``messages``: by client; this function sets their ttl and drops large contents after sending.
    ``timeout``: seconds until a missing reply counts as lost. At most ``window`` messages wait for
    a reply at once, so that memory and polling do not grow with the number of clients. Each reply
    is moved to the ``store`` immediately; ``portion`` bounds how many are fetched together.
    ``report`` is called with the number of good replies after each fetch.

    Raises ``Stopped`` if the SuperLink fails while it receives the messages.
    """
    store = store or ReplyStore()
    replies: dict[int, Message] = {}
    failures: list[Failure] = []
    waiting: dict[str, int] = {}
    unsent = deque(messages)

    def lose(k: int, reason: str, kind: FailureKind, released: str = "") -> None:
        failures.append(Failure(k=k, round=t, reason=reason, kind=kind, released=released))

    no_reply = f"no reply within {timeout:g} s"
    deadline, pause = time.monotonic() + timeout, FIRST_POLL
    sizes = {id(content): count_bytes(content) for content in _contents(messages)}
    most = portion(next(iter(sizes.values()), 0))  # replies are seldom larger than requests
    least, any_reply = window // 10, False  # sending several together takes less time
    over = False  # poll once more after the deadline: an incomplete reply may have delayed others
    while (waiting or unsent) and not over:
        free = min(window - len(waiting), len(unsent))
        enough = free >= min(least, len(unsent)) or not any_reply
        due = [unsent.popleft() for _ in range(free if enough else 0)]
        for k in due:
            messages[k].metadata.ttl = timeout + LATE
        names = push(grid, [messages[k] for k in due], t) if due else []
        large = [k for k in due if sizes[id(messages[k].content)] > LEAST]
        messages.update((k, _without_content(messages[k])) for k in large)
        for k, name in zip(due, names, strict=True):
            if name:
                waiting[name] = k
            else:
                lose(k, UNDELIVERED, "unreachable", UNDELIVERED)
        over = time.monotonic() >= deadline
        names, any_reply = list(waiting), False
        while names:
            some, names = names[:most], names[most:]
            arrived, unreadable = pull(grid, some, deadline, store)
            any_reply = any_reply or bool(arrived)
            for name, reason in unreadable.items():
                lose(waiting.pop(name), reason, "refused")
            for reply in arrived:
                k = waiting.pop(reply.metadata.reply_to_message_id, -1)
                if k < 0:  # a second reply to the same message, or a reply to an unknown message
                    continue
                if reply.has_error() and _late(reply):
                    lose(k, no_reply, "late", no_reply)
                elif reply.has_error():
                    why = _reason(reply)
                    lose(k, why, *kind_of(why))
                elif reply.metadata.src_node_id != messages[k].metadata.dst_node_id:
                    why = "another node answered in its place"
                    lose(k, why, "not authentic", why.replace("its", "a client's"))
                else:
                    size = count_bytes(reply.content)
                    most = min(most, portion(size))
                    store.keep(reply.content, size)
                    replies[k] = reply
        report(len(replies))
        pause = FIRST_POLL if any_reply else min(1.5 * pause, LAST_POLL)
        if waiting and not over:
            time.sleep(pause)
    late = f"not asked within {timeout:g} s"
    for k in unsent:
        lose(k, f"{late}, window = {window} others were waited for", "late", late)
    for k in waiting.values():
        lose(k, no_reply, "late", no_reply)
    return dict(sorted(replies.items())), sorted(failures, key=lambda failure: failure.k)


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
        reason = f"the SuperLink failed while it took the messages: {details(error)[:LONGEST]}"
        raise Stopped(f"round {t}: {reason}") from error


def pull(
    grid: Grid, names: list[str], deadline: float, store: ReplyStore
) -> tuple[list[Message], dict[str, str]]:
    """Return the replies to the message ids ``names`` that have arrived, and reasons by id for
    replies that cannot be read.

    Wait until ``deadline`` for a reply of which a part has arrived, see ``whole_by``. If Flower
    cannot read one reply, it drops all replies of that call; then pull them one by one.

    Raises ``OSError`` naming the store's folder if that is full.
    """
    try:
        with whole_by(deadline, store.chunk_file):
            return list(grid.pull_messages(names)), {}
    except grpc.RpcError:
        raise
    except Exception as error:
        log.exception("a reply cannot be read")
        cause = line(error, LONGEST, typed=True)
    if len(names) == 1:
        return [], {names[0]: f"its reply cannot be read: {cause}"}
    arrived: list[Message] = []
    lost: dict[str, str] = {}
    for name in names:
        replies, unreadable = pull(grid, [name], deadline, store)
        lost |= unreadable
        for reply in replies:
            if reply.has_error():
                lost[name] = f"lost where a reply cannot be read ({cause}): {_reason(reply)}"
            else:
                arrived.append(reply)
    return arrived, lost


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
