"""End complete sessions of processes, also after the death of the process that started them.

Every process that a run starts is the leader of its own session. The children of Flower and Ray
stay in that session (Ray's driver leaves its process group, but not its session). A run has cleaned
up if none of its sessions has a living process.

As a script, this file reads one session id per line from standard input, and ends all sessions when
its parent dies, also by SIGKILL. A negative id removes a session that has ended by itself.
It uses only the standard library.
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
    """Return the ids of the running processes in ``sessions``, without zombies."""
    return [pid for pid, session in _processes() if session in sessions]


def end(sessions: Collection[int], grace: float) -> None:
    """Send SIGTERM to all processes of ``sessions``, and after ``grace`` s SIGKILL."""
    _signal(living(sessions), signal.SIGTERM)
    if not _gone(sessions, grace):
        kill(sessions)
        _gone(sessions, 5.0)


def kill(sessions: Collection[int]) -> None:
    """Send SIGKILL to all processes of ``sessions``."""
    _signal(living(sessions), signal.SIGKILL)


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
    """Return (process id, session id) of every running process that is visible to this user."""
    if not Path("/proc/self/stat").exists():
        return _processes_without_proc()
    processes = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                text = Path("/proc", entry, "stat").read_text(errors="replace")
                state, _, _, session = text.rpartition(")")[2].split()[:4]
                if state not in "ZX":
                    processes.append((int(entry), int(session)))
    return processes


def _processes_without_proc() -> list[tuple[int, int]]:
    listing = subprocess.run(["ps", "-axo", "pid=,stat="], capture_output=True, text=True)
    processes = []
    for line in listing.stdout.splitlines():
        pid, state = line.split()[:2]
        if not state.startswith("Z"):
            with contextlib.suppress(OSError):
                processes.append((int(pid), os.getsid(int(pid))))
    return processes


def main(parent: int, grace: float) -> None:
    """Collect session ids until standard input closes or ``parent`` dies, then end the sessions."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    text = b""
    while True:
        orphaned = os.getppid() != parent  # checked before the read, so that no input is lost
        if select.select([0], [], [], 0.0 if orphaned else 1.0)[0]:
            chunk = os.read(0, 4096)
            text += chunk
            if not chunk:
                break
        elif orphaned:
            break
    sessions: set[int] = set()
    for session in map(int, text.split()):
        sessions = sessions | {session} if session > 0 else sessions - {-session}
    end(sessions, grace)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
