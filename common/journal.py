"""Journal of a run: the server writes it, the report reads it, displays and trackers follow it.

``journal.jsonl`` has one JSON object in each line: the census (round 0), then every counted round.
A line omits the keys that its entry does not have. All values except ``seconds`` are a function of
configuration and seed.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import first_line, invalid

_DIGEST = re.compile(rb', "digest": "([0-9a-f]{64})"\}\Z')

Primary = Literal["global", "personal"]
"""Score that counts for a run: the server's model on the server's test set, or the clients' models
on their own test samples."""

VERSION = 2
"""Version of the entries. Version 1 had no key ``version``, had ``clients`` for ``client_metrics``,
and stored the fairness of every model beside that of the run's model."""


class Use(Enum):
    """Mark of a field: where it goes beside the journal of a run without privacy."""

    RELEASED = "It may leave the server under [privacy]: it tells nothing of single clients."
    TRACKED = "Trackers get its numbers, with their paths."


class Part(BaseModel):
    """Part of an entry; unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)

    def as_dict(self) -> Mapping[str, object]:
        """Return the fields by name, in the form for summaries and trackers."""
        return self.model_dump()


@final
class Member(Part):
    """A client in the census."""

    k: Annotated[int, Use.RELEASED]
    model: Annotated[str, Use.RELEASED] = "?"
    n: int = 0  #: training samples
    n_test: int = 0
    parameters: Annotated[int | None, Use.RELEASED] = None
    classes: list[int] = []  #: classes with at least one training sample
    counts: list[int] | None = None  #: training samples of each class, if the client sends them
    tags: Annotated[list[str], Use.RELEASED] = []  #: in order of the client's setting


Change = Literal["joined", "left", "returned", "replaced"]
"""Kind of an event: a client takes part for the first time; it takes part no longer; it takes part
again, with the state that it stored; it lost that state."""


@final
class Event(Part):
    """Change of the membership before a round; ``cause`` is one line."""

    k: int
    kind: Change
    cause: str = ""
    member: Member | None = None  #: a client that joined, as in the census


@final
class ClientScore(Part):
    """Client k's accuracies, in [0, 1], on its own n test samples."""

    k: int
    n: int | None = None
    accuracy: float | None = None  #: accuracy of its own model, or else of the global one
    accuracy_global: float | None = None
    accuracies: dict[str, float] = {}  #: accuracies of further global models, by name


@final
class Spread(Part):
    """Fairness of one model over the clients (FedKF, section III-B)."""

    amp: float  #: mean, weighted by test samples
    fm: float  #: population variance
    wlp: float  #: the worst client's


@final
class Fairness(Part):
    """Fairness of the run's model (``main``) and of every model by its name (``models``)."""

    main: Spread
    models: dict[str, Spread] = {}

    def as_dict(self) -> Mapping[str, object]:
        """Return amp, fm and wlp of the run's model, and those of every model under its name."""
        return {**self.main.model_dump(), **{n: s.model_dump() for n, s in self.models.items()}}


@final
class Personal(Part):
    """Accuracy in [0, 1] of the clients' own models, or else of the global one, on their own tests.

    The scored clients with test samples count (``common.metrics.over_clients``).
    """

    accuracy: float  #: mean, weighted by test samples: the AMP of the own models
    unweighted: float  #: mean
    std: float  #: population standard deviation
    worst: float  #: the worst client's
    worst_tenth: float  #: unweighted mean of the worst tenth of the clients
    clients: int


@final
class ByClass(Part):
    """Metrics by class in [0, 1], over all samples of a score (``common.metrics.over_classes``)."""

    accuracy: list[float | None]  #: of each class; None for a class without samples
    balanced_accuracy: float
    macro_f1: float


@final
class Cost(Part):
    """Numbers that the paper's formula counts for one round, and the bytes of their messages."""

    numbers: int
    bytes: int


@final
class Privacy(Part):
    """Privacy loss (ε, δ) of one client over the rounds so far."""

    epsilon: float
    delta: float


@final
class Gain(Part):
    """Accuracy on the whole test set before and after a client's incentive (I-DL-MH)."""

    before: float
    after: float


@final
class Incentive(Part):
    """Mean gain over the clients that took part, and the gain of each client."""

    before: float
    after: float
    clients: dict[int, Gain] = {}

    def as_dict(self) -> Mapping[str, object]:
        """Return the means."""
        return self.model_dump(exclude={"clients"})


@final
class Magnitude(Part):
    """Size of the numbers in a client's reply (``server_app/messaging/sanity.py``)."""

    largest: float  #: the largest absolute value
    change: float | None = None  #: change of the parameters per step, over the median ...
    among: int | None = None  #: ... of this number of clients with the same architecture


@final
class Undone(Part):
    """A discarded attempt at a round, which was repeated without the suspects."""

    round: int
    why: str
    suspects: list[int]
    once: bool = False  #: whether the suspects are left out of this round only


FailureKind = Literal[
    "late",
    "unreachable",
    "not authentic",
    "left out",
    "refused",
    "diverged",
    "no session",
    "client error",
    "unknown",
]
"""Kind of a failure, set where it arises. ``late``: no reply in time. ``unreachable``: the message
did not arrive, or the node is not connected. ``not authentic``: another sender, or a forged reply.
``left out``: the client is suspected of a collapse. ``refused``: the server refuses the reply.
``diverged``: the client's training diverged. ``no session``: the client lost the keys of its
session. ``client error``: any other error of the client. ``unknown``: of an earlier release."""


@final
class Failure(Part):
    """Failure of client k in a round; ``reason`` is one line."""

    k: int
    round: int
    reason: str
    kind: FailureKind = "unknown"


@final
class PeakMemory(Part):
    """Largest number of bytes in tensors at one time, by client and for the server."""

    clients: dict[int, float] = {}
    server: float = 0.0

    @staticmethod
    def most(peaks: Sequence[PeakMemory]) -> PeakMemory:
        """Return the maximum of several peaks, for each client and for the server."""
        clients: dict[int, float] = {}
        for peak in peaks:
            for k, size in peak.clients.items():
                clients[k] = max(size, clients.get(k, 0.0))
        return PeakMemory(clients=clients, server=max((peak.server for peak in peaks), default=0.0))

    def as_dict(self) -> Mapping[str, float]:
        """Return the clients' mean, the clients' maximum and the server's bytes."""
        sizes = list(self.clients.values()) or [0.0]
        return {"clients": fmean(sizes), "largest": max(sizes), "server": self.server}


@final
class Entry(Part):
    """One line of the journal. Accuracies are shares in [0, 1], losses nats, times seconds."""

    version: Annotated[int, Use.RELEASED] = VERSION
    round: Annotated[int, Use.RELEASED] = Field(ge=0)

    # Only in the census.
    clients: Annotated[list[Member], Use.RELEASED] = []
    classes: Annotated[list[str], Use.RELEASED] = []
    uncovered: list[int] = []  #: classes without a sample at any client

    # Only in rounds.
    #: clients that joined, left, returned or were replaced before it
    events: Annotated[list[Event], Use.RELEASED] = []
    selected: Annotated[list[int], Use.RELEASED] = []
    replied: list[int] = []
    metrics: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED] = {}
    client_metrics: dict[int, dict[str, float]] = {}
    magnitudes: dict[int, Magnitude] = {}  #: sizes of the received replies, by client
    #: difference of the clients' updates, in [0, 1] (``score.drift``)
    drift: Annotated[float | None, Use.TRACKED] = None
    undone: list[Undone] = []  #: earlier attempts at this round
    cost: Cost | None = None
    privacy: Annotated[Privacy | None, Use.RELEASED] = None
    incentive: Annotated[Incentive | None, Use.TRACKED] = None
    coefficients: list[list[float]] = []  #: c [N, N] of ``kt-pfl``, for N ≤ 100

    # The server's model on the server's test set, in rounds with scores.
    accuracy: Annotated[float | None, Use.RELEASED, Use.TRACKED] = None
    loss: Annotated[float | None, Use.RELEASED, Use.TRACKED] = None
    #: on the classes that at least one client has
    accuracy_covered: Annotated[float | None, Use.TRACKED] = None
    #: accuracies of all models by name, if several
    accuracies: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED] = {}
    #: accuracies by BatchNorm statistics (running, batch, recalibrated)
    accuracy_bn: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED] = {}
    #: the target that ends the run (``score.stop``)
    reached: Annotated[float | None, Use.RELEASED] = None
    #: rounds without a new best score that end it (``score.patience``)
    stalled: Annotated[int | None, Use.RELEASED] = None

    # The clients' scores, in rounds with scores.
    scores: list[ClientScore] = []
    fairness: Annotated[Fairness | None, Use.TRACKED] = None
    personal: Annotated[Personal | None, Use.TRACKED] = None

    # The run's primary score.
    primary: Primary = "global"  #: ``personal``: ``personal.accuracy``, else ``accuracy``
    by_class: Annotated[ByClass | None, Use.RELEASED, Use.TRACKED] = None

    failures: list[Failure] = []
    notes: Annotated[list[str], Use.RELEASED] = []  #: remarks for the reader of the run
    #: down, up, and of the numbers only: arrays_down, arrays_up
    bytes: Annotated[dict[str, int], Use.TRACKED] = {}
    seconds: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED] = {}  #: wall clock by phase
    #: operations in training: clients, server; if counted
    flops: Annotated[dict[str, int], Use.TRACKED] = {}
    memory: Annotated[PeakMemory | None, Use.TRACKED] = None  #: if measured

    @property
    def end(self) -> str:
        """Reason why the run ends with this round before its last one, or an empty text."""
        if self.reached is not None:
            return f"target {100 * self.reached:.1f} % is reached"
        return f"{self.stalled} rounds without a new best score" if self.stalled else ""

    @property
    def primary_accuracy(self) -> float | None:
        """Accuracy in [0, 1] that counts for the run; None in a round without that score."""
        if self.primary == "global":
            return self.accuracy
        return self.personal.accuracy if self.personal else None

    @property
    def other_accuracy(self) -> float | None:
        """Accuracy in [0, 1] of the score that is not primary; None in a round without it."""
        if self.primary == "personal":
            return self.accuracy
        return self.personal.accuracy if self.personal else None

    def line(self) -> str:
        """Return the entry as a line of the journal, without digest and line end."""
        return json.dumps({"version": self.version, **self.model_dump(exclude_unset=True)})

    @classmethod
    def read(cls, line: str) -> Entry:
        """Return the entry in ``line``.

        Raises a one-line ``ValueError`` for an invalid line, ``OtherVersion`` for another version.
        """
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from error
        entry = value if isinstance(value, dict) and "round" in value else {"version": VERSION}
        version = entry.get("version", 1)
        if version != VERSION:
            raise OtherVersion(
                f"the journal has version {version}, this release reads version {VERSION}: use the "
                "release that wrote it"
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise ValueError(f"it is no entry: {invalid(error)}") from None


class OtherVersion(ValueError):
    """Error for a journal that another release wrote."""


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


def members(entries: Sequence[Entry]) -> list[Member]:
    """Return every client that has taken part in these rounds, in order of k."""
    known = {member.k: member for entry in entries[:1] for member in entry.clients}
    for event in events(entries):
        if event.member is not None:
            known[event.k] = event.member
    return [known[k] for k in sorted(known)]


def present(entries: Sequence[Entry]) -> set[int]:
    """Return the clients that take part after the last of these rounds."""
    clients = {member.k for entry in entries[:1] for member in entry.clients}
    for event in events(entries):
        (clients.discard if event.kind == "left" else clients.add)(event.k)
    return clients


def events(entries: Sequence[Entry]) -> list[Event]:
    """Return all changes of the membership, in their order."""
    return [event for entry in entries for event in entry.events]


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
