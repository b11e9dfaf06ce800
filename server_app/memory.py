"""Memory that large messages leave behind, given back to the system.

Flower's records lie in circles of references, which keep their arrays until the garbage collector
finds them. Linux's allocator keeps freed memory for later, which spares a computation work but is
of no use while messages are sent and fetched. Hence the calls of glibc by ctypes: a server that
exchanges 200 MB has 769 MB at most with them, 974 MB without. The same thresholds from the
environment would hold for training too, which takes 1.7 times as long with ``SENDING``.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL

MUCH = 1 << 26  #: bytes that are worth looking for, which takes a tenth of a second
_LARGE, _SPARE = -3, -1  #: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
SENDING = {_LARGE: 1 << 20, _SPARE: 1 << 17}
"""Bytes of a block that goes back as soon as it is freed, and that are kept at an end."""
COMPUTING = {_LARGE: 1 << 23, _SPARE: 1 << 26}
"""What costs a computation next to nothing: larger blocks take long to fill."""


@contextmanager
def sending(far: bool) -> Iterator[None]:
    """In this context freed memory is given back at once, where clients are ``far`` and do not
    compute in this process.
    """
    if not far:
        yield
        return
    _set(SENDING)
    try:
        yield
    finally:
        _set(COMPUTING)


def free_memory(moved: int) -> None:
    """Free what is left of exchanges of so many bytes."""
    if moved >= MUCH:
        gc.collect()
        if trim := _allocator("malloc_trim"):
            trim(0)


def _set(options: dict[int, int]) -> None:
    if mallopt := _allocator("mallopt"):
        for name, value in options.items():
            mallopt(name, value)


def _allocator(name: str) -> Callable[..., int] | None:
    """A function of Linux's allocator, where it is glibc's."""
    return getattr(CDLL(None), name, None) if sys.platform == "linux" else None
