"""Send messages, collect the replies, and lose neither a reply nor a failure on the way.

Flower's ``send_and_receive`` looks for replies every three seconds; a round of small models takes
less. Replies are matched by the message they answer: the source id of an error reply can be wrong.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import grpc
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.errors import LONGEST, first_line, line
from common.exchange.records import count_bytes
from common.flower.rpc import HALFWAY, details, few_at_once, whole_by
from common.journal import Failure
from server_app.messaging.reply_files import ReplyStore
from server_app.stopped import Stopped

FIRST_POLL, LAST_POLL = 0.005, 0.1
WINDOW = 1000  #: messages that wait for a reply at once
PORTION = 1 << 26  #: bytes of replies, about, that are fetched at once
LEAST = 1 << 20  #: bytes that a reply is taken to have at least
UNAVAILABLE = 3  #: Flower's code for what has outlived its ttl, and for a reply never whole
LATE = 30.0  #: seconds of ttl beyond the timeout: whole replies may wait behind half ones

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
    """Good replies by client, and failures; both in ascending order of k, never of arrival.

    ``messages``: by client; their ttl is set here, and large contents are dropped once they are
    sent. ``timeout``: seconds until a missing reply counts as lost. At most ``window`` messages
    wait for a reply at once, so that memory and polling do not grow with the number of clients. A
    reply goes to the ``store`` at once; ``portion`` bounds how many are fetched at a time.
    ``report`` gets the number of good replies again and again.

    Raises ``Stopped`` if the SuperLink fails while it takes the messages.
    """
    store = store or ReplyStore()
    replies: dict[int, Message] = {}
    failures: list[Failure] = []
    waiting: dict[str, int] = {}
    turns = deque(messages)

    def lose(k: int, reason: str) -> None:
        failures.append(Failure(k=k, round=t, reason=reason))

    silent = f"no reply within {timeout:g} s"
    deadline, pause = time.monotonic() + timeout, FIRST_POLL
    sizes = {id(content): count_bytes(content) for content in _contents(messages)}
    most = portion(next(iter(sizes.values()), 0))  # replies are seldom larger than what was sent
    least, anybody = window // 10, False  # some at once are less work than one by one
    over = False  # once more after the deadline: one that stopped halfway may have held up others
    while (waiting or turns) and not over:
        free = min(window - len(waiting), len(turns))
        enough = free >= min(least, len(turns)) or not anybody
        due = [turns.popleft() for _ in range(free if enough else 0)]
        for k in due:
            messages[k].metadata.ttl = timeout + LATE
        names = push(grid, [messages[k] for k in due], t) if due else []
        large = [k for k in due if sizes[id(messages[k].content)] > LEAST]
        messages.update((k, _envelope(messages[k])) for k in large)
        for k, sent in zip(due, names, strict=True):
            if sent:
                waiting[sent] = k
            else:
                lose(k, "the message could not be delivered")
        over = time.monotonic() >= deadline
        names, anybody = list(waiting), False
        while names:
            some, names = names[:most], names[most:]
            arrived, unreadable = pull(grid, some, deadline, store)
            anybody = anybody or bool(arrived)
            for name, reason in unreadable.items():
                lose(waiting.pop(name), reason)
            for reply in arrived:
                k = waiting.pop(reply.metadata.reply_to_message_id, -1)
                if k < 0:  # a second reply to the same message, or one to nothing that was asked
                    continue
                if reply.has_error():
                    lose(k, silent if _late(reply) else _reason(reply))
                elif reply.metadata.src_node_id != messages[k].metadata.dst_node_id:
                    lose(k, "another node answered in its place")
                else:
                    size = count_bytes(reply.content)
                    most = min(most, portion(size))
                    store.keep(reply.content, size)
                    replies[k] = reply
        report(len(replies))
        pause = FIRST_POLL if anybody else min(1.5 * pause, LAST_POLL)
        if waiting and not over:
            time.sleep(pause)
    late = f"not asked within {timeout:g} s, window = {window} others were waited for"
    for k, reason in (*((k, late) for k in turns), *((k, silent) for k in waiting.values())):
        lose(k, reason)
    return dict(sorted(replies.items())), sorted(failures, key=lambda failure: failure.k)


def _contents(messages: Mapping[int, Message]) -> Iterable[RecordDict]:
    """What is held by any of the messages, each once."""
    return {id(message.content): message.content for message in messages.values()}.values()


def _envelope(message: Message) -> Message:
    """A message without what it holds."""
    about = message.metadata
    return Message(
        RecordDict(), about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
    )


def portion(size: int) -> int:
    """How many replies of ``size`` bytes may be in memory before they are kept elsewhere."""
    return max(PORTION // max(size, LEAST), 1)


def push(grid: Grid, messages: Iterable[Message], t: int) -> list[str]:
    """Send, and return the messages' names, empty for one that could not be delivered.

    Raises ``Stopped`` if the SuperLink fails meanwhile.
    """
    try:
        with few_at_once():
            return list(grid.push_messages(messages))
    except grpc.RpcError as error:
        said = f"the SuperLink failed while it took the messages: {details(error)[:LONGEST]}"
        raise Stopped(f"round {t}: {said}") from error


def pull(
    grid: Grid, names: list[str], deadline: float, store: ReplyStore
) -> tuple[list[Message], dict[str, str]]:
    """What has arrived of the replies to ``names``, and which cannot be read, with the reason.

    A reply that has begun to arrive is waited for until ``deadline``, see ``whole_by``. One that
    Flower cannot read makes it drop all that it pulled at once; then they are pulled one by one.

    Raises ``OSError`` naming the shelf's folder if that is full.
    """
    try:
        with whole_by(deadline, store.chunk_file):
            return list(grid.pull_messages(names)), {}
    except grpc.RpcError:
        raise
    except Exception as error:
        log.exception("a reply cannot be read")
        what = line(error, LONGEST, typed=True)
    if len(names) == 1:
        return [], {names[0]: f"its reply cannot be read: {what}"}
    arrived: list[Message] = []
    lost: dict[str, str] = {}
    for name in names:
        found, unreadable = pull(grid, [name], deadline, store)
        lost |= unreadable
        for reply in found:
            if reply.has_error():
                said = _reason(reply)
                lost[name] = f"lost where a reply cannot be read ({what}): {said}"
            else:
                arrived.append(reply)
    return arrived, lost


def _late(reply: Message) -> bool:
    """Whether an error reply says that nothing had come when the message's time was over."""
    said = reply.error.reason or ""
    return bool(reply.error.code == UNAVAILABLE and HALFWAY not in said)


def _reason(reply: Message) -> str:
    return first_line(reply.error.reason or f"error code {reply.error.code}", LONGEST)
