"""journal.jsonl: the server appends a line at the end of each round, other programs follow it.

The file has one JSON object in each line. A line omits the keys that its entry does not have. It
ends with ``"digest"``: the SHA-256, in hexadecimal, of the line's bytes without
``, "digest": "…"``. Lines of earlier releases may lack it, or also have ``"follows"``, the digest
of the line before, which is not read.
"""

import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from common.errors import first_line
from common.files import Damaged, write_atomically
from common.journal import Entry, OtherVersion

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{64})"\}\Z')


@final
@dataclass(frozen=True)
class Line:
    """One line of a journal's file.

    ``entry``: None if the line cannot be read; ``why``: the error in the line, empty if there is
    none; ``proven``: whether it has a digest; ``cut``: whether it is the last line, cut by a crash.
    """

    number: int
    raw: bytes
    entry: Entry | None
    why: str
    proven: bool
    cut: bool


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


def sealed(entry: Entry) -> bytes:
    """Return the line of an entry with its digest and the line end."""
    text = entry.line().encode()
    digest = hashlib.sha256(text).hexdigest()
    return text[:-1] + f', "digest": "{digest}"}}\n'.encode()


def read_lines(path: Path) -> list[Line]:
    """Return every line of a journal, with its error if there is one.

    Raises ``OtherVersion``, with the path, for a journal that another release wrote.
    """
    lines: list[Line] = []
    *complete, rest = path.read_bytes().split(b"\n")
    due, proven = 0, False
    for number, raw in enumerate([*complete, rest] if rest else complete, start=1):
        entry, why = _entry(raw, path)
        digest = _DIGEST.search(raw)
        if entry is None:
            due += 1
        elif digest and hashlib.sha256(_DIGEST.sub(b"}", raw)).hexdigest().encode() != digest[1]:
            why, due = "its digest does not match its text", due + 1
        elif proven and not digest:
            why, due = "it has no digest, but an earlier line has one", due + 1
        else:
            if digest and entry.round != due:
                why = f"it is for round {entry.round}, expected {due}"
            due = entry.round + 1
        proven = proven or digest is not None
        cut = entry is None and number > len(complete)
        lines.append(Line(number, raw, entry, why, digest is not None, cut))
    return lines


def _entry(raw: bytes, path: Path) -> tuple[Entry | None, str]:
    """Return the entry of a line, or None and the reason why it cannot be read."""
    try:
        return Entry.read(raw.decode()), ""
    except OtherVersion as error:
        raise OtherVersion(f"{path}: {error}") from None
    except ValueError as error:
        return None, first_line(error)


def follow(
    path: Path,
    stop: Callable[[], bool],
    on_round: Callable[[Entry], None],
    warn: Callable[[str], None],
    poll_s: float = 0.2,
) -> None:
    """Hand every entry of a growing journal to ``on_round`` until ``stop()`` returns true.

    The file need not exist yet. Only complete lines are read. Lines without an entry are skipped
    (the report lists them). ``warn`` gets one line if another release wrote entries. A file that is
    replaced or becomes shorter is read from its start. After ``stop()`` returns true, the file is
    read once more, so that the last line is not lost.
    """
    offset, node, strange = 0, 0, False
    while True:
        last, new = stop(), b""
        if path.exists():
            with path.open("rb") as file:
                size, before, node = file.seek(0, 2), node, os.fstat(file.fileno()).st_ino
                offset = offset if node == before and offset <= size else 0
                file.seek(offset)
                new = file.read()
        end = new.rfind(b"\n") + 1
        offset += end
        for line in new[:end].split(b"\n")[:-1]:
            try:
                entry = Entry.read(line.decode(errors="replace"))
            except OtherVersion as error:
                if not strange:
                    warn(str(error))
                strange = True
            except ValueError:
                continue
            else:
                on_round(entry)
        if last:
            return
        time.sleep(poll_s)
