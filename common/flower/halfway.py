"""Replies that stop halfway: their client died while it sent them, or keeps a part back.

Flower hands a reply out when its description is there and asks for each of its parts again and
again, for up to 83 minutes whatever the run's timeout, and every other reply waits behind it. The
grid has no knob for this, so the function that it pulls with is replaced while an exchange goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

STALLED = 300.0  #: seconds without a further part; a part has at most 20 MB
HALFWAY = "the reply stopped halfway"


class _Halfway(Exception):
    """Not one that Flower answers with another try."""


@contextmanager
def bounded(deadline: float) -> Iterator[None]:
    """Replies pulled in this context must be whole by ``deadline``, a ``time.monotonic()``, and
    may not stand still for ``STALLED`` seconds; one that is not becomes an error reply.
    """
    grid: Any = grpc_grid
    pull = grid.pull_objects

    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: Any
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
            found: dict[str, bytes] = pull(object_ids, pull_one, **named)
        except _Halfway as part:
            error = ObjectUnavailableError(str(part))
            error.args = (f"{HALFWAY}, without {str(part)[:12]}",)
            raise error from None
        return found

    grid.pull_objects = pull_objects
    try:
        yield
    finally:
        grid.pull_objects = pull
