"""Memory and processor time of a federation's processes, by part; Linux only.

RSS counts a page in every process that has it, PSS shares it out among them; so only PSS adds up.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from deploy.flower import watchdog

PARTS = {
    "flower-superexe": "task loops",  # the kernel keeps 15 characters of a name
    "flwr-clientapp": "ClientApps",
    "flwr-serverapp": "ServerApp",
}


@final
@dataclass(frozen=True)
class Usage:
    """Of all processes of one part: how many, bytes, and the largest one's RSS in bytes.

    ``own``: of pages that only one process has, but for those of files. ``anonymous``: of the
    largest one's pages that are no file's, which the system cannot take back.
    """

    processes: int
    pss: int
    rss: int
    largest: int
    own: int
    anonymous: int


def part(name: str, pid: int) -> str:
    """Which part the process ``pid`` in the session of the process called ``name`` belongs to."""
    comm = Path(f"/proc/{pid}/comm").read_text().strip()
    return PARTS.get(comm) or ("SuperNodes" if name.startswith("supernode") else name)


def usage(sessions: Mapping[int, str]) -> dict[str, Usage]:
    """The memory of all processes in ``sessions`` (session id to name), by part."""
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    for pid in watchdog.living(set(sessions)):
        with contextlib.suppress(OSError):  # a process may end while it is looked at
            memory = _rollup(pid)
            found.setdefault(part(sessions[os.getsid(pid)], pid), []).append(memory)
    return {
        name: Usage(
            len(rows),
            sum(row[0] for row in rows),
            sum(row[1] for row in rows),
            max(row[1] for row in rows),
            sum(row[2] for row in rows),
            max(row[3] for row in rows),
        )
        for name, rows in found.items()
    }


def processor(sessions: Mapping[int, str]) -> dict[str, float]:
    """Processor seconds so far of the living processes in ``sessions``, by part."""
    found: dict[str, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for pid in watchdog.living(set(sessions)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            name = part(sessions[os.getsid(pid)], pid)
            found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return found


def own(pid: int) -> int:
    """Bytes of the pages that only this process has, but for those of files; 0 if it has ended."""
    try:
        return _sizes(pid)["Private_Dirty"]
    except OSError:
        return 0


def anonymous(pid: int | None = None) -> int:
    """Bytes of a process's memory that are no file's, by default of this one; 0 if it has ended.

    Unlike ``own`` they do not depend on forked children that share pages.
    """
    try:
        return _sizes(os.getpid() if pid is None else pid)["Anonymous"]
    except OSError:
        return 0


def _rollup(pid: int) -> tuple[int, int, int, int]:
    """(PSS, RSS, own as ``own`` has it, of no file) of a process in bytes."""
    sizes = _sizes(pid)
    return sizes["Pss"], sizes["Rss"], sizes["Private_Dirty"], sizes["Anonymous"]


def _sizes(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


@final
class Peak:
    """A context in which memory is looked at again and again; keeps the most of every part."""

    def __init__(
        self, sessions: Mapping[int, str], every: float, when: Callable[[], bool] = lambda: True
    ) -> None:
        """Look ``every`` so many seconds, from when ``when`` first says so."""
        self.parts: dict[str, Usage] = {}
        self.total = 0  #: bytes of PSS of all processes together, at most
        self._sessions, self._every, self._when = sessions, every, when
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.wait(self._every):
            if self._when():
                self._when = lambda: True
                self.take()

    def take(self) -> None:
        """Look now."""
        now = usage(self._sessions)
        self.total = max(self.total, sum(each.pss for each in now.values()))
        for name, each in now.items():
            past = self.parts.get(name, each)
            self.parts[name] = Usage(
                max(past.processes, each.processes),
                max(past.pss, each.pss),
                max(past.rss, each.rss),
                max(past.largest, each.largest),
                max(past.own, each.own),
                max(past.anonymous, each.anonymous),
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
