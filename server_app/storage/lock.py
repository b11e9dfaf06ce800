"""Lock a run's folder: one run at a time writes to it, and others see that it is running.

A run holds a file lock there. The system releases it when the process ends, also if it is killed,
so that no stale lock remains. On a file system without locks there is no protection.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

NAME = ".running"
PATIENCE = 20.0  #: seconds; a run that was killed with its launcher takes a few to end
POLL = 0.1  #: seconds


@contextlib.contextmanager
def hold(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the folder's lock.

    Raises ``ValueError`` if another process still holds it after ``patience`` seconds, or if the
    folder cannot be written.
    """
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(f"out = {folder} cannot be written: {error.strerror}") from error
    try:
        deadline = time.monotonic() + patience
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise ValueError(
                    f"another run (process {_holder(folder)}) writes to out = {folder}; wait for "
                    "its end or stop it"
                )
            time.sleep(POLL)
        with contextlib.suppress(OSError):  # a full disk: the process id is not essential
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def held(folder: Path) -> bool:
    """Return whether a process holds the folder's lock; take the lock for a moment to test it."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _holder(folder: Path) -> str:
    """Return the id of the process that holds the folder's lock."""
    try:
        return (folder / NAME).read_text(errors="replace")[:20].strip() or "unknown"
    except OSError:
        return "unknown"


def _locked(descriptor: int) -> bool:
    """Take the lock, and return whether that succeeded or the file system has no locks."""
    try:
        return filelock.lock_descriptor(descriptor, blocking=False)
    except OSError:  # a file system without locks
        return True
