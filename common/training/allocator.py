"""Thresholds of Linux's memory allocator (glibc): when freed memory returns to the system.

A training step frees and allocates the same activations again. With glibc's own thresholds, large
blocks return to the system at every step, and the system fills their pages with zeros when they are
allocated again. A server that exchanges large messages needs the opposite: it frees a message once.
"""

import sys
from collections.abc import Callable
from ctypes import CDLL

_LARGE, _SPARE = -3, -1  #: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
SENDING = {_LARGE: 1 << 20, _SPARE: 1 << 17}
"""Bytes from which a freed block returns to the system at once, and spare bytes that are kept."""
COMPUTING = {_LARGE: 1 << 25, _SPARE: 1 << 30}
"""The same for training. 32 MiB is the largest block that glibc takes from its heap."""


def set_thresholds(thresholds: dict[int, int]) -> None:
    """Set the thresholds of this process; do nothing on other systems."""
    if mallopt := _function("mallopt"):
        for name, value in thresholds.items():
            mallopt(name, value)


def trim() -> None:
    """Return all spare memory to the system; do nothing on other systems."""
    if malloc_trim := _function("malloc_trim"):
        malloc_trim(0)


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of glibc's allocator, or None on other systems."""
    return getattr(CDLL(None), name, None) if sys.platform == "linux" else None
