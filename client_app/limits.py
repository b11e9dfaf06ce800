"""A client's own bound on memory: what goes beyond it fails in that client, and nowhere else."""

from __future__ import annotations

import resource
import sys

MB = 10**6


def limit_memory(megabytes: int) -> None:
    """From now on this process gets at most so many 10⁶ bytes of private memory; 0: no limit.

    Counted are heap and anonymous mappings (``RLIMIT_DATA``), not files mapped for reading. An
    allocation beyond the limit raises in torch or Python, which the server hears as one line; the
    process lives. Only Linux enforces it.
    """
    if sys.platform != "linux":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * MB if megabytes else hard
    if hard != resource.RLIM_INFINITY:
        wanted = hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
