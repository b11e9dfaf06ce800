"""journal.jsonl: one JSON line for each round, appended and flushed when the round is done.

Everything in it but ``seconds`` is a function of configuration and seed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, final

from common.files import write_atomically

Entry = dict[str, Any]


@final
class Journal:
    """The journal of one run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def append(self, entry: Entry) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """All whole lines; a line that a crash cut short is left out."""
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        return entries

    def rewind(self, last: Entry) -> None:
        """Make ``last``, the checkpoint's round, the last line; later rounds will be repeated.

        Raises ``ValueError`` if a round before it is missing.
        """
        t = last["round"]
        kept = [entry for entry in self.entries() if entry["round"] < t]
        if [entry["round"] for entry in kept] != list(range(t)):
            raise ValueError(f"{self.path} lacks rounds before {t}, where the checkpoint is")
        lines = "".join(json.dumps(entry) + "\n" for entry in [*kept, last])
        write_atomically(self.path, lines.encode())


def without_times(entry: Entry) -> Entry:
    """An entry as it must come out on every runtime: everything but ``seconds``."""
    return {key: value for key, value in entry.items() if key != "seconds"}
