"""Entries of a run's journal: one for the census (round 0), then one for every counted round.

The server writes them (``server_app/storage/journal.py``), the report reads them, displays and
trackers follow them. All values except ``seconds`` and ``measured`` are a function of configuration
and seed. The marks of a field say where it is shown, its unit, and how its values in several rounds
combine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from itertools import chain
from operator import itemgetter
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import invalid
from common.files import parse_json
from common.measures import ACCURACY, MEASURES, Measure
from common.metrics import over_rounds, sums

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


class Over(Enum):
    """Mark of a field: how its values in the rounds combine into the value of a run (``over``)."""

    LAST = "value of the last round, which may be empty"
    NEWEST = "newest value that is not empty"
    MEAN = "mean of the rounds that have it"
    COURSE = "final, best and last-10 mean of the rounds that have it, without the census"
    SUM = "sum by name, with the census"
    MOST = "maximum of each client and of the server, with the census"
    ALL = "all items, with the census"


class Unit(Enum):
    """Mark of a field: unit of its numbers, as charts and metrics name it."""

    SHARE = "0 to 1"
    NATS = "nats"
    SECONDS = "seconds"
    BYTES = "bytes"
    OPERATIONS = "operations"
    COUNT = "number"


M = TypeVar("M", Use, Over, Unit)
Measured = dict[str, float | None]  #: scores by measure; None where the samples do not define them


class JsonObject(BaseModel):
    """Object of JSON in the files of a run, such as an entry or a field of it.

    Unknown keys are ignored, so that older versions read files of newer ones.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)

    def as_dict(self) -> Mapping[str, object]:
        """Return the fields by name, in the form for summaries and trackers."""
        return self.model_dump()


@final
class Member(JsonObject):
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
class Event(JsonObject):
    """Change of the membership before a round; ``cause`` is one line."""

    k: int
    kind: Change
    cause: str = ""
    member: Member | None = None  #: a client that joined, as in the census


@final
class ClientScore(JsonObject):
    """Client k's scores on its own n test samples.

    Of classes they are accuracies in [0, 1]; of labels and numbers they are the measures.
    """

    k: int
    n: int | None = None
    age: int = 0  #: rounds since it was measured: a client in asynchronous rounds was busy since
    accuracy: float | None = None  #: accuracy of its own model, or else of the global one
    accuracy_global: float | None = None
    accuracies: dict[str, float] = {}  #: accuracies of further global models, by name
    measures: Measured = {}  #: scores of its own model, or else of the global one
    measures_global: Measured = {}

    @property
    def own(self) -> float | None:
        """The primary score of its own model, or else of the global one."""
        return _primary(self.accuracy, self.measures)

    @property
    def shared(self) -> float | None:
        """The primary score of the global model."""
        return _primary(self.accuracy_global, self.measures_global)

    @property
    def further(self) -> dict[str, float]:
        """The primary scores of further models, by name."""
        return self.accuracies or _by_model(self.measures)


@final
class Spread(JsonObject):
    """Fairness of one model over the clients (FedKF, section III-B)."""

    amp: float  #: mean, weighted by test samples
    fm: float  #: population variance
    wlp: float  #: the worst client's


@final
class Fairness(JsonObject):
    """Fairness of the run's model (``main``) and of every model by its name (``models``)."""

    main: Spread
    models: dict[str, Spread] = {}

    def as_dict(self) -> Mapping[str, object]:
        """Return amp, fm and wlp of the run's model, and those of every model under its name."""
        return {**self.main.model_dump(), **{n: s.model_dump() for n, s in self.models.items()}}


@final
class Personal(JsonObject):
    """Score of the clients' own models, or else of the global one, on their own test samples.

    The scored clients with test samples count (``common.metrics.over_clients``). ``unweighted`` to
    ``worst_tenth`` are of the primary score, None if it is defined at no client, such as the R² of
    one sample. Of classes the primary score is the accuracy; else ``measures`` has every measure
    over the clients (``Measure.combined``), the primary one first.
    """

    accuracy: float | None = None  #: mean, weighted by test samples: the AMP of the own models
    measures: Measured = {}
    pooled: bool = False
    """Whether ``measures`` are of all samples together; false, and those of further models
    (``macro_auc:small``): means over the clients."""
    unweighted: float | None = None  #: mean
    std: float | None = None  #: population standard deviation
    worst: float | None = None  #: the worst client's
    worst_tenth: float | None = None  #: unweighted mean of the worst tenth of the clients
    clients: int  #: with a primary score of their own

    @property
    def value(self) -> float | None:
        """The primary score."""
        return _primary(self.accuracy, self.measures)


@final
class ByClass(JsonObject):
    """Metrics by class in [0, 1], over all samples of a score (``common.metrics.over_classes``)."""

    accuracy: list[float | None]  #: of each class; None for a class without samples
    balanced_accuracy: float
    macro_f1: float
    macro_auc: float | None = None  #: one class against the others; of models of the server only


@final
class Cost(JsonObject):
    """Numbers that the paper's formula counts for one round, and the bytes of their messages."""

    numbers: int
    bytes: int

    def as_dict(self) -> Mapping[str, float]:
        """Return both fields and the bytes of a number."""
        return {**self.model_dump(), "bytes_per_number": round(self.bytes / self.numbers, 4)}


@final
class Privacy(JsonObject):
    """Privacy loss (ε, δ) of one client over the rounds so far."""

    epsilon: float
    delta: float


@final
class Gain(JsonObject):
    """Accuracy on the whole test set before and after a client's incentive (I-DL-MH)."""

    before: float
    after: float


@final
class Incentive(JsonObject):
    """Mean gain over the clients that took part, and the gain of each client."""

    before: float
    after: float
    clients: dict[int, Gain] = {}

    def as_dict(self) -> Mapping[str, object]:
        """Return the means."""
        return self.model_dump(exclude={"clients"})


@final
class Magnitude(JsonObject):
    """Size of the numbers in a client's reply (``server_app/messaging/sanity.py``)."""

    largest: float  #: the largest absolute value
    change: float | None = None  #: change of the parameters per step, over the median ...
    among: int | None = None  #: ... of this number of clients with the same architecture


@final
class Undone(JsonObject):
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
    "lost",
    "after deadline",
    "not needed",
    "stale",
    "unknown",
]
"""Kind of a failure, set where it arises. ``late``: no reply in time. ``unreachable``: the message
did not arrive, or the node is not connected. ``not authentic``: another sender, or a forged reply.
``left out``: the client is suspected of a collapse. ``refused``: the server refuses the reply.
``diverged``: the client's training diverged. ``no session``: the client lost the keys of its
session. ``client error``: any other error of the client. ``unknown``: of an earlier release. On the
virtual clock: ``lost``: its job was lost; ``after deadline``; ``not needed``: enough replies came
first; ``stale``: the update is older than ``buffer.max-staleness``."""


ON_CLOCK: Collection[FailureKind] = ("lost", "after deadline", "not needed", "stale")
"""Kinds of failures on the virtual clock: neither the client nor the network is at fault."""


@final
class Failure(JsonObject):
    """Failure of client k in a round; ``reason`` is one line.

    ``released``: reason that may leave the server under [privacy], without the client and without
    numbers of its update; empty: none may. The journal does not have it.
    """

    k: int
    round: int
    reason: str
    kind: FailureKind = "unknown"
    released: Annotated[str, Field(exclude=True)] = ""


@final
class PeakMemory(JsonObject):
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
class ClockTime(JsonObject):
    """Times of a round on the virtual clock, in seconds with six decimals."""

    start: Annotated[float, Use.RELEASED]
    end: Annotated[float, Use.RELEASED]
    clients: dict[int, float] = {}  #: seconds of each client's job, also of late and unneeded ones
    late: list[int] = []  #: clients whose replies came after the end, or were not needed
    #: of each client, also of late ones: bytes of arrays down and up, steps, operations
    jobs: dict[int, tuple[int, int, int, int]] = {}
    energy: float | None = None  #: joules of all jobs, if every device has its power

    def as_dict(self) -> Mapping[str, object]:
        """Return the end and the energy."""
        return self.model_dump(include={"end", "energy"}, exclude_none=True)


JobEventKind = Literal["sent", "arrived", "lost"]
"""Kind of an event of a job: ``lost`` without an update, or with the update of a client that left.
"""
JobEvent = tuple[JobEventKind, int, int]
"""Kind of the event, client and version of its job."""


@final
class Arrivals(JsonObject):
    """A step of asynchronous rounds: the events of jobs since the step before, and its updates.

    A version is the number of steps before a model, so round t makes version t from version t - 1.
    """

    events: list[JobEvent] = []  #: of all jobs since the step before, in their order
    arrived: list[tuple[int, int]] = []  #: client and version of each update, in their order
    times: list[float] = []  #: when these updates arrived, in seconds on the clock or of the run
    staleness: list[int] = []  #: of these updates: steps since their version
    in_flight: int = 0  #: jobs that go on after the step

    def as_dict(self) -> Mapping[str, float]:
        """Return mean and maximum of the staleness, and the jobs in flight."""
        of = self.staleness or [0]
        return {"staleness": fmean(of), "oldest": max(of), "in_flight": self.in_flight}


@final
class Entry(JsonObject):
    """One line of the journal."""

    version: Annotated[int, Use.RELEASED] = VERSION
    round: Annotated[int, Use.RELEASED] = Field(ge=0)

    # Only in the census.
    clients: Annotated[list[Member], Use.RELEASED] = []
    classes: Annotated[list[str], Use.RELEASED] = []
    uncovered: Annotated[list[int], Over.ALL] = []  #: classes without a sample at any client

    # Only in rounds.
    #: clients that joined, left, returned or were replaced before it
    events: Annotated[list[Event], Use.RELEASED, Over.ALL] = []
    selected: Annotated[list[int], Use.RELEASED] = []
    replied: list[int] = []
    metrics: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED, Over.LAST] = {}
    client_metrics: dict[int, dict[str, float]] = {}
    magnitudes: dict[int, Magnitude] = {}  #: sizes of the received replies, by client
    #: difference of the clients' updates, in [0, 1] (``score.drift``)
    drift: Annotated[float | None, Use.TRACKED, Over.MEAN, Unit.SHARE] = None
    undone: list[Undone] = []  #: earlier attempts at this round
    cost: Annotated[Cost | None, Over.SUM] = None
    privacy: Annotated[Privacy | None, Use.RELEASED, Over.LAST] = None
    #: share of the entries of updates that ``secure.clip`` cut off, mean over the clients
    clipped: Annotated[float | None, Use.RELEASED, Use.TRACKED, Over.MEAN, Unit.SHARE] = None
    incentive: Annotated[Incentive | None, Use.TRACKED, Over.LAST, Unit.SHARE] = None
    #: c [N, N] of ``kt-pfl``, for N ≤ 100
    coefficients: Annotated[list[list[float]], Over.LAST, Unit.SHARE] = []

    # The server's model on the server's test set, in rounds with scores.
    accuracy: Annotated[float | None, Use.RELEASED, Use.TRACKED, Over.COURSE, Unit.SHARE] = None
    loss: Annotated[float | None, Use.RELEASED, Use.TRACKED, Over.NEWEST, Unit.NATS] = None
    #: of labels and numbers in place of the accuracy: every measure, the primary one first, and
    #: ``measure:model`` of all models if there are several
    measures: Annotated[Measured, Use.RELEASED, Use.TRACKED, Over.COURSE] = {}
    #: the measures of each label or target
    by_output: Annotated[dict[str, list[float | None]], Use.RELEASED, Over.NEWEST] = {}
    #: on the classes that at least one client has
    accuracy_covered: Annotated[float | None, Use.TRACKED, Over.LAST, Unit.SHARE] = None
    #: accuracies of all models by name, if several
    accuracies: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED, Over.COURSE, Unit.SHARE] = {}
    #: accuracies by BatchNorm statistics (running, batch, recalibrated)
    accuracy_bn: Annotated[
        dict[str, float], Use.RELEASED, Use.TRACKED, Over.COURSE, Unit.SHARE
    ] = {}
    #: the target that ends the run (``score.stop``)
    reached: Annotated[float | None, Use.RELEASED, Unit.SHARE] = None
    #: rounds without a new best score that end it (``score.patience``)
    stalled: Annotated[int | None, Use.RELEASED, Over.LAST] = None

    # The clients' scores, in rounds with scores.
    scores: Annotated[list[ClientScore], Over.NEWEST] = []
    fairness: Annotated[Fairness | None, Use.TRACKED, Over.NEWEST, Unit.SHARE] = None
    personal: Annotated[Personal | None, Use.TRACKED, Over.COURSE, Unit.SHARE] = None

    # The run's primary score.
    primary: Primary = "global"  #: ``personal``: ``personal.accuracy``, else ``accuracy``
    by_class: Annotated[ByClass | None, Use.RELEASED, Use.TRACKED, Over.NEWEST, Unit.SHARE] = None

    failures: Annotated[list[Failure], Over.ALL] = []
    notes: Annotated[list[str], Use.RELEASED] = []  #: remarks for the reader of the run
    #: down, up, and of the numbers only: arrays_down, arrays_up
    bytes: Annotated[dict[str, int], Use.TRACKED, Over.SUM, Unit.BYTES] = {}
    #: wall clock by phase
    seconds: Annotated[dict[str, float], Use.RELEASED, Use.TRACKED, Over.SUM, Unit.SECONDS] = {}
    #: operations in training: clients, server; if counted
    flops: Annotated[dict[str, int], Use.TRACKED, Over.SUM, Unit.OPERATIONS] = {}
    memory: Annotated[PeakMemory | None, Use.TRACKED, Over.MOST, Unit.BYTES] = None  #: if measured
    #: the virtual clock, for runs with device profiles
    clock: Annotated[ClockTime | None, Use.RELEASED, Use.TRACKED, Over.NEWEST, Unit.SECONDS] = None
    #: of asynchronous rounds
    buffer: Annotated[Arrivals | None, Use.TRACKED, Over.NEWEST, Unit.COUNT] = None
    #: measured seconds from sending a request to its reply, by client, for runs with a clock
    measured: dict[int, float] = {}

    @property
    def end(self) -> str:
        """Reason why the run ends with this round before its last one, or an empty text."""
        if self.reached is not None:
            return f"target {self.measure.text(self.reached)} is reached"
        return f"{self.stalled} rounds without a new best score" if self.stalled else ""

    @property
    def measure(self) -> Measure:
        """Measure of the scores; the accuracy in an entry without any."""
        measures = self.measures or (self.personal.measures if self.personal else {})
        return MEASURES[next(iter(measures), ACCURACY.name)]

    @property
    def others(self) -> dict[str, float]:
        """The measures of the primary score's models beside the primary one; empty for classes."""
        personal = self.personal.measures if self.personal else {}
        measures = self.measures if self.primary == "global" else personal
        return {n: v for n, v in [*measures.items()][1:] if ":" not in n and v is not None}

    @property
    def by_model(self) -> dict[str, float]:
        """The scores of all models of the server by name, if several."""
        return self.accuracies or _by_model(self.measures)

    @property
    def primary_score(self) -> float | None:
        """Score that counts for the run; None in a round without it."""
        return self.score(self.primary)

    @property
    def other_score(self) -> float | None:
        """The score that is not primary; None in a round without it."""
        return self.score("personal" if self.primary == "global" else "global")

    def score(self, kind: Primary) -> float | None:
        """Return the global or the personal score; None in a round without it."""
        if kind == "global":
            return _primary(self.accuracy, self.measures)
        return self.personal.value if self.personal else None

    def line(self) -> str:
        """Return the entry as a line of the journal, without digest and line end."""
        return json.dumps({"version": self.version, **self.model_dump(exclude_unset=True)})

    @classmethod
    def read(cls, line: str) -> Entry:
        """Return the entry in ``line``.

        Raises a one-line ``ValueError`` for an invalid line, ``OtherVersion`` for another version.
        """
        try:
            value = parse_json(line)
        except ValueError as error:
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


def _primary(accuracy: float | None, measures: Measured) -> float | None:
    """Return the accuracy of classes, else the first of the measures."""
    return accuracy if accuracy is not None else next(iter(measures.values()), None)


def _by_model(measures: Measured) -> dict[str, float]:
    """Return the scores named ``measure:model`` by model."""
    named = ((name.partition(":")[2], value) for name, value in measures.items())
    return {name: value for name, value in named if name and value is not None}


EMPTY: tuple[object, ...] = (None, {}, [])
"""Values of fields that an entry does not have."""


def marked(kind: type[M]) -> dict[str, M]:
    """Return the marks of one kind by field of an entry, for fields that have one."""
    fields = Entry.model_fields.items()
    return {name: m for name, field in fields for m in field.metadata if isinstance(m, kind)}


OVER = marked(Over)
UNITS = marked(Unit)


class OtherVersion(ValueError):
    """Error for a journal that another release wrote."""


def members(entries: Sequence[Entry]) -> list[Member]:
    """Return every client that has taken part in these rounds, in order of k."""
    known = {member.k: member for entry in entries[:1] for member in entry.clients}
    for event in over(entries, "events"):
        if event.member is not None:
            known[event.k] = event.member
    return [known[k] for k in sorted(known)]


def present(entries: Sequence[Entry]) -> set[int]:
    """Return the clients that take part after the last of these rounds."""
    clients = {member.k for entry in entries[:1] for member in entry.clients}
    for event in over(entries, "events"):
        (clients.discard if event.kind == "left" else clients.add)(event.k)
    return clients


def primary_course(entries: Sequence[Entry]) -> list[tuple[int, float]]:
    """Return (round, primary score) of every round that has it."""
    scores = ((entry.round, entry.primary_score) for entry in entries)
    return [(t, score) for t, score in scores if score is not None]


def measure_of(entries: Sequence[Entry]) -> Measure:
    """Return the measure of a run's scores; the accuracy before there is any."""
    return next((e.measure for e in entries if e.measure is not ACCURACY), ACCURACY)


def newest(entries: Sequence[Entry], field: str) -> Any:
    """Return the newest value of a field that some entries leave empty; None if all do."""
    return next((v for e in reversed(entries) if (v := getattr(e, field)) not in EMPTY), None)


def over(entries: Sequence[Entry], field: str) -> Any:
    """Return the value of a field over these rounds, as its mark ``Over`` says.

    The value of a field that no round has is that of an entry without it.
    """
    how = OVER[field]
    if how is Over.LAST:
        return getattr(entries[-1] if entries and entries[-1].round else Entry(round=0), field)
    counted = entries if how in WITH_CENSUS else [entry for entry in entries if entry.round]
    values = [value for entry in counted if (value := getattr(entry, field)) not in EMPTY]
    return COMBINED[how](values) if values else getattr(Entry(round=0), field)


def _course(values: Sequence[Any]) -> dict[str, Any]:
    """Return the course of an accuracy, of those with the newest names, or of ``Personal``."""
    last = values[-1]
    if isinstance(last, Personal):
        if last.accuracy is None:
            courses = _course([value.measures for value in values])
            others = last.model_dump(exclude={"accuracy", "measures"})
            primary = courses.get(next(iter(last.measures)), {})
            return {**primary, **others, "measures": courses}
        others = last.model_dump(exclude={"accuracy", "measures", "pooled"})
        return {**over_rounds([value.accuracy for value in values]), **others}
    if isinstance(last, Mapping):
        each = {n: [v[n] for v in values if v.get(n) is not None] for n in last}
        measures = {n: MEASURES.get(n.partition(":")[0], ACCURACY) for n in last}
        return {n: over_rounds(of, measures[n].best) for n, of in each.items() if of}
    return over_rounds(values)


WITH_CENSUS = {Over.SUM, Over.MOST, Over.ALL}  #: ways in which the census counts
COMBINED: Mapping[Over, Callable[[list[Any]], Any]] = {
    Over.NEWEST: itemgetter(-1),
    Over.MEAN: fmean,
    Over.COURSE: _course,
    Over.SUM: lambda values: type(values[0])(**sums(map(dict, values))),
    Over.MOST: PeakMemory.most,
    Over.ALL: lambda values: list(chain.from_iterable(values)),
}
"""Functions that combine the values of the rounds that have the field."""
