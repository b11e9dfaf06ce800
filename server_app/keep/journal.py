"""journal.jsonl: one line for each round, appended, chained and flushed when the round is done."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from common import chain
from common.files import Damaged, write_atomically
from common.journal import Entry


@final
class Journal:
    """The journal of one run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"
        self._last: str | None = None  #: the digest of the last line, once it is known

    def append(self, entry: Entry) -> None:
        """Add a round behind the last line."""
        if self._last is None:
            lines = chain.read(self.path) if self.path.exists() else []
            self._last = lines[-1].digest if lines else ""
        sealed = chain.seal(entry.line(), self._last)
        with open(self.path, "ab") as file:
            file.write(sealed + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._last = chain.digest(sealed)

    def entries(self) -> list[Entry]:
        """Those of all whole lines up to the first that is damaged or cut short.

        Raises ``OtherVersion`` for a journal that another release wrote.
        """
        if not self.path.exists():
            return []
        lines = itertools.takewhile(lambda line: not line.why, chain.read(self.path))
        return [line.entry for line in lines if line.entry is not None]

    def before(self, t: int) -> list[chain.Line]:
        """The lines of the rounds before t.

        Raises ``Damaged`` if one is not as it was written, or is missing.
        """
        kept, needed = list[chain.Line](), f"is needed before round {t}, where the checkpoint is"
        for line in chain.read(self.path)[:t] if self.path.exists() else []:
            if line.why or line.entry is None or line.entry.round != len(kept):
                why = line.why or "it is of another round"
                where = f"{self.path}, line {line.number} is damaged: {why}"
                raise Damaged(f"{where}; round {len(kept)} {needed}")
            kept.append(line)
        if len(kept) < t:
            raise Damaged(f"{self.path} lacks rounds before {t}, where the checkpoint is")
        return kept

    def rewind(self, last: Entry) -> None:
        """Make ``last``, the checkpoint's round, the last line; later rounds will be repeated.

        Raises as ``before`` does.
        """
        kept = self.before(last.round)
        sealed = chain.seal(last.line(), kept[-1].digest if kept else "")
        lines = b"".join(line + b"\n" for line in [*(line.raw for line in kept), sealed])
        write_atomically(self.path, lines)
        self._last = chain.digest(sealed)


@contextmanager
def clock(entry: Entry, phase: str) -> Iterator[None]:
    """Add the block's wall-clock seconds to a phase of the entry."""
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = entry.seconds.get(phase, 0.0) + time.perf_counter() - start
        entry.seconds = {**entry.seconds, phase: round(spent, 6)}
