"""Memory and processor time of a federation's processes, by part; Linux only.

RSS counts a page in every process that has it, PSS shares it out among them; so only PSS adds up.
"""

import contextlib
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from deploy.flower import watchdog

PARTS = {
    "flower-superexe": "task loops",  # the kernel keeps 15 characters of a name
    "flwr-clientapp": "ClientApps",
    "flwr-serverapp": "ServerApp",
}
TOTAL = "total", "pss"  #: name of the PSS of all processes together

Name = TypeVar("Name")


def usage(sessions: Mapping[int, str]) -> Counter[tuple[str, str]]:
    """Return the memory of all processes in ``sessions`` (session id to name), by part and kind.

    The kinds are the number of ``processes``, and bytes: ``pss``, ``rss``, and the RSS of the
    ``largest`` process; ``own``, of pages that one process alone has, without those of files;
    ``anonymous``, of a process's pages that are no file's, the most of one process.
    """
    found: Counter[tuple[str, str]] = Counter()
    for pid in watchdog.living(set(sessions)):
        with contextlib.suppress(OSError):  # a process may end while it is looked at
            bytes_of, name = sizes(pid), part(sessions[os.getsid(pid)], pid)
            found[TOTAL] += bytes_of["Pss"]
            found[name, "processes"] += 1
            for kind, key in (("pss", "Pss"), ("rss", "Rss"), ("own", "Private_Dirty")):
                found[name, kind] += bytes_of[key]
            for kind, key in (("largest", "Rss"), ("anonymous", "Anonymous")):
                found[name, kind] = max(found[name, kind], bytes_of[key])
    return found


def part(name: str, pid: int) -> str:
    """Return the part of the process ``pid`` in the session of the process called ``name``."""
    comm = Path(f"/proc/{pid}/comm").read_text().strip()
    return PARTS.get(comm) or ("SuperNodes" if name.startswith("supernode") else name)


def processor(sessions: Mapping[int, str]) -> dict[str, float]:
    """Return the seconds of processor time of all processes in ``sessions``, by part."""
    found: dict[str, float] = defaultdict(float)
    for pid in watchdog.living(set(sessions)):
        with contextlib.suppress(OSError):
            name = part(sessions[os.getsid(pid)], pid)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def sizes(pid: int) -> dict[str, int]:
    """Return the bytes of a process by the kernel's names; raise ``OSError`` if it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def size(pid: int, kind: str) -> int:
    """Return one size of a process; 0 if it has ended."""
    try:
        return sizes(pid)[kind]
    except OSError:
        return 0


def own(pid: int) -> int:
    """Return the bytes of the pages that only this process has, but for those of files."""
    return size(pid, "Private_Dirty")


def anonymous(pid: int) -> int:
    """Return the bytes of a process's memory that are no file's.

    Unlike ``own`` they do not depend on forked children that share pages.
    """
    return size(pid, "Anonymous")


@contextlib.contextmanager
def peak(look: Callable[[], Counter[Name]], every: float) -> Iterator[Counter[Name]]:
    """Yield the largest of each number that ``look`` returns, every so many seconds."""
    most: Counter[Name] = Counter()
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(every):
            most |= look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()
