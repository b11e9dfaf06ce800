"""``removed.txt`` in a run's folder: clients that the operator removed from the run.

The file has one client number in each line. ``fedmosaic remove`` writes it, and the server reads it
before each round.
"""

import re
from pathlib import Path

from common.files import write_atomically

NAME = "removed.txt"


def read(folder: Path) -> frozenset[int]:
    """Return the removed clients. Raises ``ValueError``, one line, for a damaged file."""
    path = folder / NAME
    if not path.exists():
        return frozenset()
    words = path.read_text(encoding="utf-8", errors="replace").split()
    if wrong := next((word for word in words if not re.fullmatch("[0-9]{1,9}", word)), None):
        raise ValueError(f"{path}: {wrong!r} is no client number")
    return frozenset(map(int, words))


def write(folder: Path, removed: frozenset[int]) -> None:
    """Write the removed clients."""
    text = "".join(f"{k}\n" for k in sorted(removed))
    write_atomically(folder / NAME, text.encode())
