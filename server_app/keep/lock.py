"""One run at a time writes to a folder; whoever watches can tell that it is still at work.

The claim is a lock on a file, which the system releases when the process ends, however it ends: a
killed run leaves nothing that the next one would have to clear away, and its launcher sees within
a second that nobody works any more. Where files cannot be locked nothing is claimed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

NAME = ".running"
PATIENCE = 20.0  #: seconds; a run that was killed with its launcher needs a few to end
POLL = 0.1


@contextlib.contextmanager
def claim(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the folder's claim.

    Raises ``ValueError`` if another process still holds it after ``patience`` seconds, or if the
    folder cannot be written.
    """
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"out = {folder} cannot be written: {error.strerror}") from error
    try:
        deadline = time.monotonic() + patience
        while not _lock(descriptor, exclusive=True):
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise ValueError(
                    f"another run (process {holder}) writes to out = {folder}; wait for its end or "
                    "stop it"
                )
            time.sleep(POLL)
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def claimed(folder: Path) -> bool:
    """Whether a process holds the folder's claim now."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(descriptor, exclusive=False)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    """Whether the lock was to be had, or files cannot be locked here."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
