"""Ends whole sessions of processes, also when the process that started them is already gone.

Every process that a run starts leads a session of its own, and whatever Flower or Ray start
below it stays in that session (Ray's driver leaves its process group, but not its session). So
"nothing is left behind" means: no living process in any of the sessions that we began.

Run as a script, this file reads one session id per line from standard input and ends them all when
its parent is gone, by SIGKILL too. It needs the standard library only.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path


def living(sessions: Collection[int]) -> list[int]:
    """Ids of the processes in ``sessions`` that still run; zombies do not count."""
    return [pid for pid, session in _processes() if session in sessions]


def end(sessions: Collection[int], grace: float) -> None:
    """SIGTERM to all processes of ``sessions``; SIGKILL to those that live after ``grace`` s."""
    _signal(living(sessions), signal.SIGTERM)
    if not _gone(sessions, grace):
        _signal(living(sessions), signal.SIGKILL)
        _gone(sessions, 5.0)


def _gone(sessions: Collection[int], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while living(sessions):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _processes() -> list[tuple[int, int]]:
    """(process id, session id) of every running process that this user may see."""
    if not Path("/proc/self/stat").exists():
        return _processes_without_proc()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                text = Path("/proc", entry, "stat").read_text(errors="replace")
                state, _, _, session = text.rpartition(")")[2].split()[:4]
                if state not in "ZX":
                    found.append((int(entry), int(session)))
    return found


def _processes_without_proc() -> list[tuple[int, int]]:
    listing = subprocess.run(["ps", "-axo", "pid=,stat="], capture_output=True, text=True)
    found = []
    for line in listing.stdout.splitlines():
        pid, state = line.split()[:2]
        if not state.startswith("Z"):
            with contextlib.suppress(OSError):
                found.append((int(pid), os.getsid(int(pid))))
    return found


def main(parent: int, grace: float) -> None:
    """Collect session ids until standard input closes or ``parent`` is gone, then end them."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    text = b""
    while True:
        alone = os.getppid() != parent  # asked first: what was written before is read below
        if select.select([0], [], [], 0.0 if alone else 1.0)[0]:
            chunk = os.read(0, 4096)
            text += chunk
            if not chunk:
                break
        elif alone:
            break
    end({int(line) for line in text.split()}, grace)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
