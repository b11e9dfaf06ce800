"""Which sockets processes listen on."""

import contextlib
import ipaddress
import os
import threading
from collections.abc import Iterator

import psutil

LOOK = 0.2  #: seconds from one look to the next


def listening(pid: int) -> set[tuple[str, str]]:
    """Name and address of every TCP socket on which a process or what it started listens now."""
    found = set()
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                sockets = each.net_connections("tcp")
                found |= {(each.name(), s.laddr.ip) for s in sockets if s.status == "LISTEN"}
    return found


def reachable(sockets: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that other machines can reach."""

    def inside(address: str) -> bool:
        ip = ipaddress.ip_address(address)
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback

    return sorted((name, address) for name, address in sockets if not inside(address))


@contextlib.contextmanager
def watched() -> Iterator[set[tuple[str, str]]]:
    """Collects the sockets of this process and its children while the block runs."""
    found: set[tuple[str, str]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            found.update(listening(os.getpid()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
