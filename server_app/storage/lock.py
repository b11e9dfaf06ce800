"""One run at a time writes to a folder; whoever watches can tell that it is still at work.

A run holds the lock of a file there, which the system releases when the process ends, however it
ends, so that a killed run leaves nothing to clear away. Where files cannot be locked nothing is
held.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

NAME = ".running"
PATIENCE = 20.0  #: seconds; a run that was killed with its launcher needs a few to end
POLL = 0.1


@contextlib.contextmanager
def hold(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the folder, so that no other process does.

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
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def held(folder: Path) -> bool:
    """Whether a process holds the folder now, found by taking the lock for a moment."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _holder(folder: Path) -> str:
    """The process id that was written by the process that holds the folder."""
    try:
        return (folder / NAME).read_text(errors="replace")[:20].strip() or "unknown"
    except OSError:
        return "unknown"


def _locked(descriptor: int) -> bool:
    """Whether the lock was to be had, or files cannot be locked here."""
    try:
        return filelock.lock_descriptor(descriptor, blocking=False)
    except OSError:  # a file system without locks
        return True
