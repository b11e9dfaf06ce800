"""Return the memory of large messages to the system after use.

Flower's records are in reference cycles, which keep their arrays until the garbage collector runs.
Linux's allocator keeps freed memory for later, which speeds up computations but not messages.
``docs/scale-measured.md`` has the peak of a server that exchanges 200 MB.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from common.training import allocator

MUCH = 1 << 26  #: bytes; smaller exchanges skip a collection, which takes a tenth of a second


@contextmanager
def sending(far: bool) -> Iterator[None]:
    """Return freed memory to the system at once in this context, if clients are ``far``.

    Clients that are not ``far`` compute in this process, which must keep its speed.
    """
    if not far:
        yield
        return
    allocator.set_thresholds(allocator.SENDING)
    try:
        yield
    finally:
        allocator.set_thresholds(allocator.COMPUTING)


def free_memory(moved: int) -> None:
    """Free the memory that exchanges of ``moved`` bytes have left."""
    if moved >= MUCH:
        gc.collect()
        allocator.trim()
