"""journal.jsonl: one line for each round, appended and flushed at the end of the round."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from common.files import Damaged, write_atomically
from common.journal import Entry, Line, read_lines, sealed


@final
class Journal:
    """The journal of one run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def append(self, entry: Entry) -> None:
        """Append an entry, and wait until it is on the disk."""
        with open(self.path, "ab") as file:
            file.write(sealed(entry))
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """Return the entries up to the first damaged or incomplete line.

        Raises ``OtherVersion`` for a journal of another release.
        """
        valid = itertools.takewhile(lambda line: not line.why, self._lines())
        return [line.entry for line in valid if line.entry is not None]

    def before(self, t: int) -> list[Line]:
        """Return the lines of rounds before t. Raises ``Damaged`` if one is damaged or missing."""
        lines = self._lines()[:t]
        for t_line, line in enumerate(lines):
            if line.why or line.entry is None or line.entry.round != t_line:
                where = f"{self.path}, line {line.number} is damaged"
                needed = f"round {t_line} is needed before round {t}, where the checkpoint is"
                raise Damaged(f"{where}: {line.why or 'it is of another round'}; {needed}")
        if len(lines) < t:
            raise Damaged(f"{self.path} lacks rounds before {t}, where the checkpoint is")
        return lines

    def rewind(self, last: Entry) -> None:
        """Make ``last``, the checkpoint's entry, the last line; later rounds will be repeated.

        Raises ``Damaged`` if an earlier line is damaged or missing.
        """
        kept = b"".join(line.raw + b"\n" for line in self.before(last.round))
        write_atomically(self.path, kept + sealed(last))

    def _lines(self) -> list[Line]:
        return read_lines(self.path) if self.path.exists() else []


@contextmanager
def clock(entry: Entry, phase: str) -> Iterator[None]:
    """Add the wall-clock seconds of the ``with`` block to a phase of the entry."""
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = entry.seconds.get(phase, 0.0) + time.perf_counter() - start
        entry.seconds = {**entry.seconds, phase: round(spent, 6)}
