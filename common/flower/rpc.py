"""Calls over gRPC: what one that failed says of itself, and replies that stop halfway.

A reply stops halfway where its client died while it sent it, or keeps a part back. Flower hands a
reply out when its description is there and asks for each of its parts again and again, for up to 83
minutes whatever the run's timeout, and every other reply waits behind it. The grid has no knob for
this, so the function that it pulls with is replaced while an exchange goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

STALLED = 300.0  #: seconds without a further part; a part has at most 20 MB
AGAIN = (
    0.05  #: seconds until a missing part is asked for again, twice as long each time; Flower's is 1
)
HALFWAY = "the reply stopped halfway"


def details(error: grpc.RpcError) -> str:
    """What the other side said, in one line."""
    text = error.details() if isinstance(error, grpc.Call) else error  # type: ignore[no-untyped-call]
    return str(text).strip().partition("\n")[0]


class _Halfway(Exception):
    """Not one that Flower answers with another try."""


@contextmanager
def whole_by(deadline: float) -> Iterator[None]:
    """Replies pulled in this context must be whole by ``deadline``, a ``time.monotonic()``, and
    may not stand still for ``STALLED`` seconds; one that is not becomes an error reply.
    """
    theirs = vars(grpc_grid)  # a name that the module imports, and its grid looks up there
    pull: Callable[..., dict[str, bytes]] = theirs["pull_objects"]

    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: object
    ) -> dict[str, bytes]:
        last = time.monotonic()

        def pull_one(part: str) -> bytes:
            nonlocal last
            try:
                content = pull_object_fn(part)
            except ObjectUnavailableError:
                if time.monotonic() > min(deadline, last + STALLED):
                    raise _Halfway(part) from None
                raise
            last = time.monotonic()
            return content

        try:
            return pull(object_ids, pull_one, **{"initial_backoff": AGAIN, **named})
        except _Halfway as part:
            error = ObjectUnavailableError(str(part))
            error.args = (f"{HALFWAY}, without {str(part)[:12]}",)
            raise error from None

    theirs["pull_objects"] = pull_objects
    try:
        yield
    finally:
        theirs["pull_objects"] = pull
