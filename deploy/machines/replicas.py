"""Seats: how identical replicas that share a folder become different clients.

A replica takes the lowest client number whose lock file nobody holds, and holds it while it lives.
The kernel lets a lock go when its process ends, however it ends, so a seat is never left taken.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take(folder: Path, clients: int) -> tuple[int, int]:
    """The lowest free k < ``clients`` and the descriptor that holds it, inherited by programs.

    Raises:
        ValueError: all seats are taken.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(clients):
        seat = os.open(folder / f"{k}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(seat)
            continue
        os.set_inheritable(seat, True)
        return k, seat
    raise ValueError(f"all {clients} seats in {folder} are taken: raise --clients or start fewer")
