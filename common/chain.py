"""The journal as a chain of digests: each line carries its own and that of the line before it.

A line is a JSON object that ends in ``"follows"``, the digest of the line before (empty for the
first), and ``"digest"``: the SHA-256, in hexadecimal, of the line's bytes without ``, "digest":
"…"``. A line without a digest, as earlier releases wrote them, is unproven; its digest, for the
line behind it, is that of all its bytes. Behind a line with a digest there is none without.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from common.errors import first_line
from common.files import Damaged
from common.journal import Entry, OtherVersion

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{64})"\}\Z')

State = Literal["whole", "unproven", "damaged", "cut"]


@final
@dataclass(frozen=True)
class Line:
    """One line of a journal. ``entry`` is there where it can be read; ``why``: what is wrong."""

    number: int
    raw: bytes
    state: State
    entry: Entry | None = None
    why: str = ""

    @property
    def digest(self) -> str:
        return digest(self.raw)


def digest(raw: bytes) -> str:
    """What the line behind this one has to follow."""
    return _own(raw) or hashlib.sha256(raw).hexdigest()


def seal(line: str, before: str) -> bytes:
    """An entry's line with the digest of the line before and its own, without the line's end."""
    body = f'{line[:-1]}, "follows": "{before}"'.encode()
    return body + f', "digest": "{hashlib.sha256(body + b"}").hexdigest()}"}}'.encode()


def read(path: Path) -> list[Line]:
    """Every line of a journal, with what is wrong with it.

    A last line that a crash cut short is ``cut``. Raises ``OtherVersion``, naming the file, for a
    journal that another release wrote.
    """
    data = path.read_bytes()
    lines: list[Line] = []
    *whole, rest = data.split(b"\n")
    for i, raw in enumerate([*whole, rest] if rest else whole, start=1):
        last = i > len(whole)
        entry, follows, why = _entry(raw, path)
        why = why or _broken(raw, follows, lines)
        state: State = "whole" if _own(raw) else "unproven"
        if why:
            state = "cut" if last and entry is None else "damaged"
        lines.append(Line(i, raw, state, entry, why))
    return lines


def proven(path: Path) -> list[Line]:
    """The lines of a journal without one that a crash cut short.

    Raises ``Damaged``, naming file and line, if any other is not as it was written.
    """
    lines = read(path)
    for line in lines:
        if line.state == "damaged":
            raise Damaged(f"{path}, line {line.number} is damaged: {line.why}")
    return [line for line in lines if line.state != "cut"]


def _entry(raw: bytes, path: Path) -> tuple[Entry | None, object, str]:
    """The entry, what it says that it follows, and why it cannot be read."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return None, None, f"byte {error.start + 1} is no UTF-8"
    try:
        found = json.loads(text) if text.startswith("{") else {}
        if "round" not in found:
            return None, None, "it is no entry of a journal"
        return Entry.of(found), found.get("follows"), ""
    except OtherVersion as error:
        raise OtherVersion(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        return None, None, first_line(error)


def _broken(raw: bytes, follows: object, before: list[Line]) -> str:
    """Why a line that can be read is not the one that was written there; empty if it is."""
    own = _own(raw)
    if not own:
        sealed = any(_own(line.raw) for line in before)
        return "it has no digest, and a line before it has one" if sealed else ""
    if hashlib.sha256(_DIGEST.sub(b"}", raw)).hexdigest() != own:
        return "its digest is not that of its text"
    expected = before[-1].digest if before else ""
    if follows != expected:
        return "it does not follow the line before it"
    return ""


def _own(raw: bytes) -> str:
    found = _DIGEST.search(raw)
    return found[1].decode() if found else ""
