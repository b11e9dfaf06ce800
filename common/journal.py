"""The journal: the server writes it, the report reads it, displays and trackers follow it.

``journal.jsonl`` has one JSON object a line: the census (round 0), then every round that was kept.
What an entry does not have is left out of its line. Everything in it but ``seconds`` is a function
of configuration and seed.

Each line ends with ``"digest"``: the SHA-256, in hexadecimal, of the line's bytes without
``, "digest": "…"``. Lines of earlier releases may lack it, or also have ``"follows"``, the digest
of the line before, which is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import first_line, invalid

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{64})"\}\Z')

VERSION = 2
"""Of the entries. Version 1 had none, ``clients`` for ``client_metrics`` and every model's
fairness beside the run's own."""


class Part(BaseModel):
    """What an entry is made of; keys that this version does not know are left aside."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)


@final
class Member(Part):
    """A client as the census found it."""

    k: int
    model: str = "?"
    n: int = 0  #: training samples
    n_test: int = 0
    parameters: int | None = None
    classes: list[int] = []  #: classes of which it holds a training sample
    counts: list[int] | None = None  #: training samples of each class, where it tells them


@final
class ClientScore(Part):
    """Client k's accuracies, in [0, 1], on its own n test samples."""

    k: int
    n: int | None = None
    accuracy: float | None = None  #: of its own model; of the global one where it has no other
    accuracy_global: float | None = None
    accuracies: dict[str, float] = {}  #: of further global models, by name


@final
class Spread(Part):
    """How even the clients' accuracies are (FedKF, section III-B)."""

    amp: float  #: mean, weighted by test samples
    fm: float  #: population variance
    wlp: float  #: the worst client's


@final
class Fairness(Part):
    """``main``: of the run's own model; ``models``: of every model by its name."""

    main: Spread
    models: dict[str, Spread] = {}

    def flat(self) -> dict[str, float | dict[str, float]]:
        """amp, fm and wlp of the run's model, and those of every model under its name."""
        return {**self.main.model_dump(), **{n: s.model_dump() for n, s in self.models.items()}}


@final
class Cost(Part):
    """What the literature's formula counts for one round, and the bytes that travelled for it."""

    numbers: int
    bytes: int


@final
class Privacy(Part):
    """What the rounds so far have cost of the clients' privacy: (ε, δ) of one client."""

    epsilon: float
    delta: float


@final
class Gain(Part):
    """Accuracy on the whole test set before and after what the server gave back (I-DL-MH)."""

    before: float
    after: float


@final
class Incentive(Part):
    """Mean gain over the clients that took part, and each one's."""

    before: float
    after: float
    clients: dict[int, Gain] = {}


@final
class Magnitude(Part):
    """How far out a client's numbers are (``server_app/messaging/sanity.py``)."""

    largest: float  #: the largest absolute value
    change: float | None = None  #: of the parameters per step, over the median ...
    among: int | None = None  #: ... of so many clients of one architecture


@final
class Undone(Part):
    """Round t was played and is not kept: it was played again without the suspects."""

    round: int
    why: str
    suspects: list[int]


@final
class Failure(Part):
    """Client k did not answer round t well; ``reason`` is one line."""

    k: int
    round: int
    reason: str


@final
class PeakMemory(Part):
    """Most bytes that tensors took at once: each client's, by client, and the server's."""

    clients: dict[int, float] = {}
    server: float = 0.0

    @staticmethod
    def most(found: Sequence[PeakMemory]) -> PeakMemory:
        """The most of several times."""
        clients: dict[int, float] = {}
        for each in found:
            for k, held in each.clients.items():
                clients[k] = max(held, clients.get(k, 0.0))
        return PeakMemory(clients=clients, server=max((each.server for each in found), default=0.0))

    def told(self) -> dict[str, float]:
        """The clients' mean, the largest of theirs, and the server's."""
        held = list(self.clients.values()) or [0.0]
        return {"clients": fmean(held), "largest": max(held), "server": self.server}


@final
class Entry(Part):
    """One line of the journal. Accuracies are shares in [0, 1], losses nats, times seconds."""

    version: int = VERSION
    round: int = Field(ge=0)

    # The census alone.
    clients: list[Member] = []
    classes: list[str] = []
    uncovered: list[int] = []  #: classes of which no client holds a sample

    # A round.
    selected: list[int] = []
    replied: list[int] = []
    metrics: dict[str, float] = {}
    client_metrics: dict[int, dict[str, float]] = {}
    magnitudes: dict[int, Magnitude] = {}  #: of the replies that came, by client
    drift: float | None = None  #: how far the clients trained apart, in [0, 1] (``score.drift``)
    undone: list[Undone] = []  #: earlier attempts at this round
    cost: Cost | None = None
    privacy: Privacy | None = None
    incentive: Incentive | None = None
    coefficients: list[list[float]] = []  #: c [N, N] of ``kt-pfl``, where N is at most 100

    # The server's model on the server's test set, where it was scored.
    accuracy: float | None = None
    loss: float | None = None
    accuracy_covered: float | None = None  #: on the classes that some client holds
    accuracies: dict[str, float] = {}  #: of every model by its name, where there are several
    accuracy_bn: dict[str, float] = {}  #: by BatchNorm's statistics: running, batch, recalibrated
    reached: float | None = None  #: the target with which the run ends (``score.stop``)

    # The clients' scores, where they were asked.
    scores: list[ClientScore] = []
    fairness: Fairness | None = None

    failures: list[Failure] = []
    notes: list[str] = []  #: what whoever reads the run should know
    bytes: dict[str, int] = {}  #: down, up, and the numbers alone: arrays_down, arrays_up
    seconds: dict[str, float] = {}  #: wall clock by phase
    flops: dict[str, int] = {}  #: of training: clients, server; where they are counted
    memory: PeakMemory | None = None  #: where it is measured

    def line(self) -> str:
        """The entry as the journal has it, without the line's end."""
        return json.dumps({"version": self.version, **self.model_dump(exclude_unset=True)})

    @classmethod
    def read(cls, line: str) -> Entry:
        """Inverse of ``line``; raises ``ValueError``, one line: no entry, or another version's."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from error
        entry = found if isinstance(found, dict) and "round" in found else {"version": VERSION}
        version = entry.get("version", 1)
        if version != VERSION:
            raise OtherVersion(
                f"the journal has version {version}, this release reads version {VERSION}: use the "
                "release that wrote it"
            )
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            raise ValueError(f"it is no entry: {invalid(error)}") from None


class OtherVersion(ValueError):
    """A journal that another release wrote."""


@final
@dataclass(frozen=True)
class Line:
    """One line of a journal's file.

    ``entry``: None if the line cannot be read; ``why``: what is wrong with it, empty if nothing is;
    ``proven``: it has a digest; ``cut``: it is the last line, and a crash cut it short.
    """

    number: int
    raw: bytes
    entry: Entry | None
    why: str
    proven: bool
    cut: bool


def sealed(entry: Entry) -> bytes:
    """Return an entry's line with the digest of its text, and the line's end."""
    text = entry.line().encode()
    digest = hashlib.sha256(text).hexdigest()
    return text[:-1] + f', "digest": "{digest}"}}\n'.encode()


def read_lines(path: Path) -> list[Line]:
    """Return every line of a journal, with what is wrong with it.

    Raises ``OtherVersion``, naming the file, for a journal that another release wrote.
    """
    lines: list[Line] = []
    *whole, rest = path.read_bytes().split(b"\n")
    due, proven = 0, False
    for number, raw in enumerate([*whole, rest] if rest else whole, start=1):
        entry, why = _entry(raw, path)
        digest = _DIGEST.search(raw)
        if entry is None:
            due += 1
        elif digest and hashlib.sha256(_DIGEST.sub(b"}", raw)).hexdigest().encode() != digest[1]:
            why, due = "its digest does not match its text", due + 1
        elif proven and not digest:
            why, due = "it has no digest, and a line before it has one", due + 1
        else:
            if digest and entry.round != due:
                why = f"it is of round {entry.round}, expected is {due}"
            due = entry.round + 1
        proven = proven or digest is not None
        cut = entry is None and number > len(whole)
        lines.append(Line(number, raw, entry, why, digest is not None, cut))
    return lines


def _entry(raw: bytes, path: Path) -> tuple[Entry | None, str]:
    """Return a line's entry, or why it cannot be read."""
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

    The file need not exist yet. Only whole lines are read. Lines without an entry are left out (the
    report names them), and ``warn`` gets one line about entries that another release wrote. A file
    that was replaced, or that shrinks, is read from its start. After ``stop()`` has returned true
    the file is read once more, so no last line is lost.
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
