"""The events that a run replays (``membership``): from a list, or from the journal of another run.

A list is a TOML file with one table for each event; ``cause`` may be left out:

    [[event]]
    round = 3
    client = 1
    kind = "left"

A client whose first event is ``joined`` is absent at the start. ``returned`` keeps the client's
stored state, ``replaced`` deletes it. ``missed``: the client is selected and sends no reply in this
round. From a journal, every selected client without a valid reply has missed its round; of
asynchronous rounds without a virtual clock it has the events of all jobs in their order.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import invalid
from common.files import parse_toml, read_text
from common.journal import ON_CLOCK, Change, Entry, Event, JobEventKind
from server_app.storage.journal import read_lines

MISSED: Final = "missed"


@final
class Planned(BaseModel):
    """One event of a list: before or, if it is ``missed``, in a round."""

    model_config = ConfigDict(extra="forbid", strict=True)

    round: Annotated[int, Field(ge=1)]
    client: Annotated[int, Field(ge=0)]
    kind: Change | Literal["missed"]
    cause: str = "by the list of events"


@final
class PlannedJob(NamedTuple):
    """An event of a job of client ``k``; ``lost``: the job that it sends is lost later."""

    kind: JobEventKind
    k: int
    lost: bool = False


@final
class _List(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    event: list[Planned] = []


@final
class Schedule:
    """The events of ``path`` by round, for a roster of ``size`` clients.

    ``absent``: clients that join later. ``missed``: clients that send no reply, by round. ``jobs``:
    events of jobs by round, in their order, if the run ``replays`` asynchronous rounds by a
    journal. Raises ``ValueError``, one line, for a file that cannot be read, an unknown client, and
    an event that does not fit the client's events before it.
    """

    def __init__(self, path: Path, size: int, *, replays: bool = False) -> None:
        self.jobs: dict[int, list[PlannedJob]] = {}
        try:
            if path.suffix == ".jsonl":
                entries = _entries(path)
                self.jobs = _jobs(entries) if replays else {}
                absent, planned = _of_journal(entries, size, replays=replays)
            else:
                absent, planned = _of_list(path)
        except OSError as error:
            raise ValueError(f"membership = {path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            why = invalid(error) if isinstance(error, ValidationError) else error
            raise ValueError(f"membership = {path}: {why}") from None
        self.absent = frozenset(absent)
        self.events: dict[int, list[Event]] = {}
        self.missed: dict[int, set[int]] = {}
        members, met = set(range(size)) - self.absent, set(range(size)) - self.absent
        for event in sorted(planned, key=lambda event: event.round):
            if why := _why_not(event, size, members, met):
                where = f"client {event.client} {event.kind} in round {event.round}"
                raise ValueError(f"membership = {path}: {where}, but {why}")
            if event.kind == MISSED:
                self.missed.setdefault(event.round, set()).add(event.client)
                continue
            (members.discard if event.kind == "left" else members.add)(event.client)
            met.add(event.client)
            fields = {"k": event.client, "kind": event.kind, "cause": event.cause}
            self.events.setdefault(event.round, []).append(Event.model_validate(fields))


def _why_not(event: Planned, size: int, members: set[int], met: set[int]) -> str:
    """Return why an event is impossible; empty if it is possible."""
    k = event.client
    if k >= size:
        return f"the clients are 0 to {size - 1}"
    if event.kind in ("left", MISSED):
        return "" if k in members else "it does not take part then"
    if event.kind == "joined":
        return "it took part before" if k in met else ""
    if event.kind == "returned":
        return "" if k in met - members else "it had not left"
    return "" if k in met else "it had not joined"


def _of_list(path: Path) -> tuple[set[int], list[Planned]]:
    """Return the clients that are absent at the start, and the events."""
    planned = _List.model_validate(parse_toml(read_text(path))).event
    by_round = sorted(planned, key=lambda event: event.round)
    first = {event.client: event.kind for event in reversed(by_round) if event.kind != MISSED}
    return {k for k, kind in first.items() if kind == "joined"}, planned


def _entries(path: Path) -> list[Entry]:
    """Return the entries of a journal. Raises ``ValueError`` for a line that is none."""
    lines = read_lines(path)
    if bad := next((line for line in lines if line.entry is None or line.why), None):
        raise ValueError(f"line {bad.number}: {bad.why}")
    return [line.entry for line in lines if line.entry is not None]


def _jobs(entries: list[Entry]) -> dict[int, list[PlannedJob]]:
    """Return the events of all jobs by round; a job that is lost has no event of an arrival.

    Raises ``ValueError`` if the rounds of the journal have no such events.
    """
    events = [(e.round, *event) for e in entries if e.buffer for event in e.buffer.events]
    if not events:
        raise ValueError('it has no jobs of asynchronous rounds (mode = "buffered")')
    sent, lost = dict[int, int](), set[int]()  # by client: number of its newest job's event
    of_job = list[int]()  # for each event: number of the event that sent its job
    for number, (_, kind, k, _) in enumerate(events):
        if kind == "sent":
            sent[k] = number
        of_job.append(sent.get(k, number))
        if kind == "lost":
            lost.add(of_job[-1])
    jobs: dict[int, list[PlannedJob]] = {}
    for (t, kind, k, _), job in zip(events, of_job, strict=True):
        if kind != "arrived" or job not in lost:
            jobs.setdefault(t, []).append(PlannedJob(kind, k, job in lost))
    return jobs


def _of_journal(
    entries: list[Entry], size: int, *, replays: bool
) -> tuple[set[int], list[Planned]]:
    """Return the clients that are absent at the start, and the events."""
    planned: list[Planned] = []
    for entry in entries:
        for event in entry.events:
            about = Planned(round=entry.round, client=event.k, kind=event.kind, cause=event.cause)
            planned.append(about)
        others = [failure for failure in entry.failures if failure.kind not in ON_CLOCK]
        if entry.buffer is not None:  # its jobs are selected in one step and reply in another
            if others and not replays:
                why = f"client {others[0].k} failed in an asynchronous round"
                raise ValueError(
                    f"round {entry.round}: {why}, which the virtual clock cannot repeat; without "
                    "profiles a run follows the order of the journal"
                )
            continue
        # the virtual clock loses and rejects the same replies again
        on_clock = {failure.k for failure in entry.failures if failure.kind in ON_CLOCK}
        for k in sorted({*entry.selected} - {*entry.replied} - on_clock):
            planned.append(Planned(round=entry.round, client=k, kind=MISSED))
    present = {member.k for entry in entries[:1] for member in entry.clients}
    return set(range(size)) - present, planned
