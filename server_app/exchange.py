"""Send messages, collect the replies, and lose neither a reply nor a failure on the way.

Flower's ``send_and_receive`` looks for replies every three seconds; a round of small models takes
less. Replies are matched by the message they answer: the source id of an error reply can be wrong.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

from flwr.app import Message
from flwr.serverapp import Grid

FIRST_POLL, LAST_POLL = 0.005, 0.1


@final
@dataclass(frozen=True)
class Failure:
    """Client k did not answer round t well; ``reason`` is one line for the journal."""

    k: int
    round: int
    reason: str


def exchange(
    grid: Grid, messages: dict[int, Message], timeout: float, t: int
) -> tuple[dict[int, Message], list[Failure]]:
    """Good replies by client, and failures; both in ascending order of k, never of arrival.

    ``messages``: by client; ``timeout``: seconds until what has not come counts as lost.
    """
    replies: dict[int, Message] = {}
    failures: list[Failure] = []
    waiting: dict[str, int] = {}
    for k, sent in zip(messages, grid.push_messages(messages.values()), strict=True):
        if sent:
            waiting[sent] = k
        else:
            failures.append(Failure(k, t, "the message could not be delivered"))
    deadline, pause = time.monotonic() + timeout, FIRST_POLL
    while waiting and time.monotonic() < deadline:
        arrived = list(grid.pull_messages(list(waiting)))
        for reply in arrived:
            k = waiting.pop(reply.metadata.reply_to_message_id, -1)
            if k < 0:
                continue
            if reply.has_error():
                failures.append(Failure(k, t, _reason(reply)))
            else:
                replies[k] = reply
        pause = FIRST_POLL if arrived else min(1.5 * pause, LAST_POLL)
        if waiting:
            time.sleep(pause)
    failures += [Failure(k, t, f"no reply within {timeout:g} s") for k in waiting.values()]
    return dict(sorted(replies.items())), sorted(failures, key=lambda failure: failure.k)


def _reason(reply: Message) -> str:
    text = (reply.error.reason or f"error code {reply.error.code}").strip()
    return text.partition("\n")[0][:500]
