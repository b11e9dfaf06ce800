"""Exchange messages, and believe only replies that are authentic, where messages are sealed.

Flower's SuperLink stores the first reply to a message, whoever sent it: a forged one takes the
place of the honest one. So whoever has no authentic reply, though its time is not over, is asked
once more under a new message id, which nobody else knows.
"""

from __future__ import annotations

import logging
import time

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import LONGEST, first_line
from common.journal import Failure
from common.records import count_bytes
from common.seal.body import NotAuthentic
from common.seal.session import failed
from server_app.talk.exchange import exchange
from server_app.talk.post import HELLO, Post, check_size

log = logging.getLogger("flwr.fedmosaic")


def ask(
    grid: Grid, post: Post, messages: dict[int, Message], timeout: float, t: int
) -> tuple[dict[int, Message], list[Failure]]:
    """As ``exchange``, with replies that are opened and authentic if the post is sealed.

    A client whose first reply was forged is among the failures even if its second one is good.
    """
    if post.seal is None:
        return exchange(grid, messages, timeout, t, post.config.run.window, post.shelf)
    start = time.monotonic()
    good, failures, forged, lost = _opened(grid, post, messages, timeout, t)
    in_time = time.monotonic() - start < timeout
    if doubtful := sorted({each.k for each in (*forged, *(lost if in_time else []))}):
        anew = {k: post.again(k, messages[k]) for k in doubtful}
        second = _opened(grid, post, anew, timeout, t)
        good |= second[0]
        # an error reply is not signed: its word counts unless the client says otherwise
        lost = [each for each in lost if each.k not in doubtful or each.k in second[0]]
        failures += [each for found in second[1:] for each in found]
    post.seal.forget()
    failures += forged + lost
    return dict(sorted(good.items())), sorted(failures, key=lambda failure: failure.k)


def _opened(
    grid: Grid, post: Post, messages: dict[int, Message], timeout: float, t: int
) -> tuple[dict[int, Message], list[Failure], list[Failure], list[Failure]]:
    """Authentic replies; failures that clients vouch for; replies that are not authentic, or too
    large to find out; and who has no reply.
    """
    replies, lost = exchange(grid, messages, timeout, t, post.config.run.window, post.shelf)
    good: dict[int, Message] = {}
    said, forged = list[Failure](), list[Failure]()
    for k in list(replies):
        reply, hello = replies.pop(k), messages[k].metadata.message_type == HELLO
        what = "the answer" if hello else f"client {k}'s reply"
        try:
            check_size(count_bytes(reply.content), post.config)
        except ValueError as error:
            forged.append(Failure(k=k, round=t, reason=f"reply refused: {error}"))
            continue
        try:
            reply.content = post.unsealed(k, messages[k], reply.content)
        except NotAuthentic as error:
            reason = f"{what} is not authentic: the SuperLink or a registered node ({error})"
            log.warning(reason)
            forged.append(Failure(k=k, round=t, reason=first_line(reason, LONGEST)))
        except ValueError as error:
            said.append(
                Failure(k=k, round=t, reason=first_line(f"reply refused: {error}", LONGEST))
            )
        else:
            post.shelf.keep(reply.content, count_bytes(reply.content))
            if (words := failed(reply.content)) is None:
                good[k] = reply
            else:
                said.append(Failure(k=k, round=t, reason=first_line(words, LONGEST)))
    return good, said, forged, lost
