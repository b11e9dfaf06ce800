"""Find the sockets on which processes listen."""

import contextlib
import ipaddress
import os
import threading
from collections.abc import Iterator

import psutil

LOOK = 0.2  #: seconds between two searches


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
