"""journal.jsonl: one line for each round, appended and flushed when the round is done."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from common.files import write_atomically
from common.journal import Entry, OtherVersion


@final
class Journal:
    """The journal of one run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def append(self, entry: Entry) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(entry.line() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """All whole lines; a line that a crash cut short is left out.

        Raises ``OtherVersion`` for a journal that another release wrote.
        """
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(Entry.read(line))
            except OtherVersion as error:
                raise OtherVersion(f"{self.path}: {error}") from None
            except ValueError:
                break
        return entries

    def rewind(self, last: Entry) -> None:
        """Make ``last``, the checkpoint's round, the last line; later rounds will be repeated.

        Raises ``ValueError`` if a round before it is missing.
        """
        t = last.round
        kept = [entry for entry in self.entries() if entry.round < t]
        if [entry.round for entry in kept] != list(range(t)):
            raise ValueError(f"{self.path} lacks rounds before {t}, where the checkpoint is")
        lines = "".join(entry.line() + "\n" for entry in [*kept, last])
        write_atomically(self.path, lines.encode())


@contextmanager
def clock(entry: Entry, phase: str) -> Iterator[None]:
    """Add the block's wall-clock seconds to a phase of the entry."""
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = entry.seconds.get(phase, 0.0) + time.perf_counter() - start
        entry.seconds = {**entry.seconds, phase: round(spent, 6)}
