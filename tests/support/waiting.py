"""Wait for a state, and find the sockets on which processes listen.

Tests do not depend on durations; the limit only ends a test that hangs.
"""

import contextlib
import ipaddress
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psutil

PATIENCE = 900.0  #: seconds after which a wait fails
LOOK = 0.2  #: seconds between two searches
LONGEST = 0.25  #: seconds between two checks; a check may search all processes

T = TypeVar("T")


def until(what: str | Callable[[], str], check: Callable[[], T], longest: float = LONGEST) -> T:
    """Call ``check`` until its result is true and return it; ``what`` is named if that fails.

    ``longest``: seconds between two checks.
    """
    deadline, pause = time.monotonic() + PATIENCE, 0.02
    while not (result := check()):
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {PATIENCE:g} s in vain for {text}")
        time.sleep(pause)
        pause = min(1.2 * pause, longest)
    return result


def listening(pid: int) -> set[tuple[str, str]]:
    """Return name and address of every TCP socket on which a process or its children listen."""
    sockets = set()
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                connections = one.net_connections("tcp")
                sockets |= {(one.name(), c.laddr.ip) for c in connections if c.status == "LISTEN"}
    return sockets


def reachable(sockets: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the sockets that other machines can reach, sorted."""

    def inside(address: str) -> bool:
        ip = ipaddress.ip_address(address)
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback

    return sorted((name, address) for name, address in sockets if not inside(address))


@contextlib.contextmanager
def watched() -> Iterator[set[tuple[str, str]]]:
    """Collect the sockets of this process and its children during the ``with`` block."""
    sockets: set[tuple[str, str]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            sockets.update(listening(os.getpid()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sockets
    finally:
        over.set()
        thread.join()
