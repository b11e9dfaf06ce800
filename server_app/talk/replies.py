"""What a client sent, opened: this is where the server stops believing.

Flower has received the reply by now, so ``wire.max-mb`` does not save its bandwidth; it saves what
unpacking would take on top.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from flwr.app import Message

from common.config import Config
from common.journal import Failure
from common.records import Records, count_bytes, tensors
from server_app.talk.exchange import one_line

R = TypeVar("R", bound=Records)
log = logging.getLogger("flwr.fedmosaic")


def open_reply(reply: Message, kind: type[R], config: Config) -> R:
    """The payload of a reply. Raises ``ValueError`` for one that is too large or is no ``kind``."""
    size, limit = count_bytes(reply.content), config.wire.max_mb
    if size > limit * 1e6:
        raise ValueError(f"it has {size / 1e6:.1f} MB, wire.max-mb = {limit:g}")
    return kind.unpack(reply.content)


def judge(
    t: int, replies: Mapping[int, Message], accept: Callable[[int, Message], None], what: str
) -> list[Failure]:
    """``accept`` every reply, in order of k; each that it raises on becomes a failure.

    Whatever a reply makes our code raise is the fault of the reply: a run must not end by it.
    """
    failures: list[Failure] = []
    for k in sorted(replies):
        try:
            accept(k, replies[k])
        except ValueError as error:
            failures.append(Failure(k=k, round=t, reason=one_line(f"{what} refused: {error}")))
        except Exception as error:
            log.exception("client %d: %s refused", k, what)
            kind = type(error).__name__
            reason = one_line(f"{what} refused: {kind}: {error}")
            failures.append(Failure(k=k, round=t, reason=reason))
    return failures


def check_finite(up: Records) -> None:
    """Raise ``ValueError`` unless all numbers of all tensors are finite."""
    for path, tensor in tensors(up):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{path!r} has values that are not finite")
