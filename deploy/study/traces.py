"""Convert other projects' availability traces to the format of ``server_app/clock/traces.py``.

FedScale (SymbioticLab/FedScale, ``client_behave_trace``), as JSON: ``{client: {"active": [s, …],
"inactive": [s, …], "finish_time": s}}``. A client is available from active[i] to inactive[i], and
the times repeat after ``finish_time``. FedScale's own file is a pickle, which can run any code when
it is opened, so it is not read here.

FLASH (PKU-Chengxu/FLASH, ``state_traces.json``): ``{guid: {"messages": "TIME\\tSTATE\\n…"}}`` with
times such as 2020-01-02 00:00:00. A client is available while its screen is locked, its network is
Wi-Fi and it charges. The trace repeats from its last message on; second 0 is 2020-01-02 00:00:00
for every client, so that nights coincide. Differences from ``models/timer.py`` there: times have no
time zone, messages are sorted, and an interval that is open at the last message ends there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, final

from common.files import check_regular, parse_json, write_atomically
from server_app.clock.traces import LONGEST, SECOND, Trace, to_line

PICKLE = b"\x80"  #: first byte of a pickle
START = datetime(2020, 1, 2)  #: FLASH's second 0
CHANGES: Mapping[str, tuple[str, bool]] = {
    **{"battery_charged_on": ("charging", True), "battery_charged_off": ("charging", False)},
    **{"screen_lock": ("locked", True), "screen_unlock": ("locked", False), "wifi": ("wifi", True)},
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
}
"""FLASH's states that decide: which condition each sets, and to what."""
OTHERS = ("screen_on", "screen_off")
"""FLASH's states that decide nothing, beside charges such as ``57.0%``."""


@final
@dataclass(frozen=True)
class Converted:
    """Traces of the clients with a usable one, and why each other client has none, by its name."""

    traces: list[Trace]
    unusable: dict[str, str]

    @property
    def share(self) -> float:
        """Mean share of the time in which a client is available."""
        on = (sum(end - start for start, end in t.on) / t.period for t in self.traces)
        return sum(on) / len(self.traces)


def convert(path: Path, clients: int = 0) -> Converted:
    """Return the traces of the first ``clients`` usable entries of a file; 0: of all.

    Raises ``ValueError``, one line, for a file of another form, and for fewer usable entries.
    """
    check_regular(path)
    data = path.read_bytes()
    try:
        content = parse_json(data)
    except ValueError as error:
        pickled = "it is a pickle, which is not opened: convert it to JSON (docs/device-time.md)"
        why = pickled if data.startswith(PICKLE) else str(error)
        raise ValueError(f"{path}: {why}") from None
    entries = content if isinstance(content, dict) else {}
    first = next(iter(entries.values()), None)
    form = next((f for keys, f in FORMS if isinstance(first, dict) and keys <= {*first}), None)
    if form is None:
        known = " or ".join(", ".join(sorted(keys)) for keys, _ in FORMS)
        raise ValueError(f"{path}: its first client has no {known}, as FedScale's or FLASH's have")
    found = Converted([], {})
    for name, entry in entries.items():
        if clients and len(found.traces) == clients:
            break
        try:
            found.traces.append(form(entry))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found.unusable[name] = f"no {error}" if isinstance(error, KeyError) else str(error)
    if len(found.traces) < max(clients, 1):
        why = "".join(f"; {name}: {why}" for name, why in [*found.unusable.items()][:1])
        raise ValueError(
            f"{path} has {len(found.traces)} clients with a usable trace"
            + (f", --clients {clients} needs more" if clients else "")
            + why
        )
    return found


def write(found: Converted, path: Path) -> None:
    """Write the traces of clients 0, 1, … to a file."""
    write_atomically(path, (to_line(k, trace).encode() for k, trace in enumerate(found.traces)))


def _fedscale(entry: Mapping[str, Any]) -> Trace:
    """Return the trace of a client of FedScale; raise ``ValueError`` if it has none."""
    active, inactive, period = entry["active"], entry["inactive"], _time(entry["finish_time"])
    if len(active) != len(inactive):
        raise ValueError(f"{len(active)} times in active, {len(inactive)} in inactive")
    pairs = zip(map(_time, active), map(_time, inactive), strict=True)
    return _trace(((start, min(end, period)) for start, end in pairs), period)


def _flash(entry: Mapping[str, Any]) -> Trace:
    """Return the trace of a client of FLASH; raise ``ValueError`` if it has none."""
    messages = sorted(_messages(entry["messages"]), key=lambda message: message[0])
    if not messages:
        raise ValueError("it has no messages")
    begin, end = messages[0][0], messages[-1][0]
    holds = dict.fromkeys(("charging", "locked", "wifi"), False)
    intervals: list[tuple[int, int]] = []
    since: int | None = None
    for time, state in messages:
        if state in CHANGES:
            condition, value = CHANGES[state]
            holds[condition] = value
        if all(holds.values()) and since is None:
            since = time
        elif not all(holds.values()) and since is not None:
            intervals.append((since, time))
            since = None
    if since is not None:
        intervals.append((since, end))
    if not (period := end - begin):
        raise ValueError("its messages have one time")
    return _trace(_wrapped(intervals, period), period)


def _messages(text: str) -> Iterable[tuple[int, str]]:
    """Yield time and state of each of FLASH's messages; times are microseconds after ``START``."""
    for line in filter(str.strip, text.split("\n")):
        time, _, state = (part.strip() for part in line.strip().partition("\t"))
        state = state.lower()
        if state not in CHANGES and state not in OTHERS and not state.endswith("%"):
            raise ValueError(f"its message {line.strip()[:60]!r} has no known state")
        if len(time) != len("2020-01-02 00:00:00"):
            raise ValueError(f"its message {line.strip()[:60]!r} has no time")
        yield round((datetime.fromisoformat(time) - START).total_seconds()) * SECOND, state


def _wrapped(intervals: Iterable[tuple[int, int]], period: int) -> Iterable[tuple[int, int]]:
    """Yield the intervals modulo ``period``, in two parts if they contain a multiple of it."""
    for start, end in intervals:
        first = start % period
        yield first, min(first + end - start, period)
        if first + end - start > period:
            yield 0, first + end - start - period


def _trace(intervals: Iterable[tuple[int, int]], period: int) -> Trace:
    """Return a trace of the intervals that are not empty, merged where they meet or overlap."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    if not merged:
        raise ValueError("it is never available")
    return Trace(tuple(merged), period)


def _time(value: float) -> int:
    """Return seconds in microseconds; raise ``ValueError`` if they are out of range."""
    if not 0 <= value <= LONGEST:
        raise ValueError(f"{value} should be seconds from 0 to 1e12")
    return round(value * SECOND)


FORMS: tuple[tuple[set[str], Callable[[Mapping[str, Any]], Trace]], ...] = (
    ({"active", "inactive", "finish_time"}, _fedscale),
    ({"messages"}, _flash),
)
"""Keys of a client's entry, and the function that reads it."""
