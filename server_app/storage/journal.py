"""journal.jsonl: one line for each round, appended and flushed when the round is done."""

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
        """Add a round behind the last line."""
        with open(self.path, "ab") as file:
            file.write(sealed(entry))
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """Those of all whole lines up to the first that is damaged or cut short.

        Raises ``OtherVersion`` for a journal that another release wrote.
        """
        whole = itertools.takewhile(lambda line: not line.why, self._lines())
        return [line.entry for line in whole if line.entry is not None]

    def before(self, t: int) -> list[Line]:
        """The lines of the rounds before t.

        Raises ``Damaged`` if one is not as it was written, or is missing.
        """
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
        """Make ``last``, the checkpoint's round, the last line; later rounds will be repeated.

        Raises as ``before`` does.
        """
        kept = b"".join(line.raw + b"\n" for line in self.before(last.round))
        write_atomically(self.path, kept + sealed(last))

    def _lines(self) -> list[Line]:
        return read_lines(self.path) if self.path.exists() else []


@contextmanager
def clock(entry: Entry, phase: str) -> Iterator[None]:
    """Add the block's wall-clock seconds to a phase of the entry."""
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = entry.seconds.get(phase, 0.0) + time.perf_counter() - start
        entry.seconds = {**entry.seconds, phase: round(spent, 6)}
