"""Calls over gRPC: what one that failed says of itself, replies that stop halfway, large ones.

A reply stops halfway where its client died while it sent it, or keeps a part back. Flower hands a
reply out when its description is there and asks for each of its parts again and again, for up to 83
minutes whatever the run's timeout, and every other reply waits behind it. The grid has no knob for
this, so the function that it pulls with is replaced while an exchange goes on, and with it the
one that puts the parts together, where large parts are to go to a file (``spool.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import grpc
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

from common.flower.spool import Spool

STALLED = 300.0  #: seconds without a further part; a part has at most 20 MB
AGAIN = (
    0.05  #: seconds until a missing part is asked for again, twice as long each time; Flower's is 1
)
FEW = 3  #: parts that are pulled at once where they go to a file; Flower's is 8
HALFWAY = "the reply stopped halfway"


def details(error: grpc.RpcError) -> str:
    """What the other side said, in one line."""
    text = error.details() if isinstance(error, grpc.Call) else error  # type: ignore[no-untyped-call]
    return str(text).strip().partition("\n")[0]


class _Halfway(Exception):
    """Not one that Flower answers with another try."""


@final
class _Parts(dict[str, bytes]):
    """Those of one reply; the large ones are in ``spool``."""

    spool: Spool


@contextmanager
def whole_by(deadline: float, spool: Callable[[], Spool] | None = None) -> Iterator[None]:
    """Replies pulled in this context must be whole by ``deadline``, a ``time.monotonic()``, and
    may not stand still for ``STALLED`` seconds; one that is not becomes an error reply.

    ``spool``: makes what takes the large parts of one reply; without it they stay in memory.
    """
    theirs = vars(grpc_grid)  # names that the module imports, and its grid looks up there
    pull: Callable[..., dict[str, bytes]] = theirs["pull_objects"]
    inflate: Callable[..., InflatableObject] = theirs["inflate_object_from_contents"]

    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: object
    ) -> dict[str, bytes]:
        last = time.monotonic()
        kept = spool() if spool else None

        def pull_one(part: str) -> bytes:
            nonlocal last
            try:
                content = pull_object_fn(part)
            except ObjectUnavailableError:
                if time.monotonic() > min(deadline, last + STALLED):
                    raise _Halfway(part) from None
                raise
            last = time.monotonic()
            return kept.take(part, content) if kept else content

        at_once = {"max_concurrent_pulls": FEW} if kept else {}
        try:
            parts = pull(object_ids, pull_one, **{"initial_backoff": AGAIN, **at_once, **named})
        except _Halfway as part:
            error = ObjectUnavailableError(str(part))
            error.args = (f"{HALFWAY}, without {str(part)[:12]}",)
            raise error from None
        if kept:
            parts = _Parts(parts)
            parts.spool = kept
        return parts

    def put_together(name: str, parts: dict[str, bytes]) -> InflatableObject:
        if not isinstance(parts, _Parts):
            return inflate(name, parts)
        message = inflate(name, parts, objects=parts.spool.objects(parts))
        if isinstance(message, Message) and message.has_content():
            parts.spool.settle(message.content)
        return message

    theirs |= {"pull_objects": pull_objects, "inflate_object_from_contents": put_together}
    try:
        yield
    finally:
        theirs |= {"pull_objects": pull, "inflate_object_from_contents": inflate}
