"""Calls over gRPC: what one that failed says of itself, replies that stop halfway, large messages.

A reply stops halfway where its client died while it sent it, or keeps a part back. Flower hands a
reply out when its description is there and asks for each of its parts again and again, for up to 83
minutes whatever the run's timeout, and every other reply waits behind it. The grid has no knob for
this, so the function that it pulls with is replaced while an exchange goes on, and with it the
one that puts the parts together, where large parts are to go to a file (``spool.py``).

What is sent Flower writes out as a whole before it sends the first part, so that it is in memory
twice. ``few_at_once`` hands it a few parts after the other.
"""

import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import final

import grpc
from flwr.app import Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

from common.errors import first_line
from common.flower.spool import Spool

STALLED = 300.0  #: seconds without a further part; a part has at most 20 MB
AGAIN = (
    0.05  #: seconds until a missing part is asked for again, twice as long each time; Flower's is 1
)
AT_ONCE = 1 << 24  #: bytes, about, of the parts that are written out together
HALFWAY = "the reply stopped halfway"


def details(error: grpc.RpcError) -> str:
    """What the other side said, in one line."""
    text = error.details() if isinstance(error, grpc.Call) else error  # type: ignore[no-untyped-call]
    return first_line(str(text))


def over_grpc(grid: Grid) -> bool:
    """Whether messages go to other processes, of whatever machine, by this module's calls."""
    return isinstance(grid, grpc_grid.GrpcGrid)


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

        try:
            parts = pull(object_ids, pull_one, **{"initial_backoff": AGAIN, **named})
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


@contextmanager
def few_at_once() -> Iterator[None]:
    """What is sent in this context is written out a few parts at a time."""
    theirs = vars(grpc_grid)
    push: Callable[..., None] = theirs["push_objects"]

    def push_objects(
        objects: dict[str, InflatableObject],
        push_object_fn: Callable[[str, bytes], None],
        *,
        object_ids_to_push: Container[str] | None = None,
        **named: object,
    ) -> None:
        some: dict[str, InflatableObject] = {}
        size = 0
        for name in list(objects):
            each = objects.pop(name)
            if object_ids_to_push is not None and name not in object_ids_to_push:
                continue
            some[name] = each
            size += len(each.data) if isinstance(each, ArrayChunk) else 0
            if size >= AT_ONCE:
                push(some, push_object_fn, **named)
                some, size = {}, 0
        push(some, push_object_fn, **named)

    theirs["push_objects"] = push_objects
    try:
        yield
    finally:
        theirs["push_objects"] = push
