"""Availability traces: the intervals of the virtual clock in which a client's device may work.

A file has one JSON object per line, with half-open and ascending intervals in seconds:

    {"k": 3, "period": 172800, "on": [[0, 5400], [61200, 86400]]}

The intervals repeat with ``period``, or never if it is 0. Here all times are integer microseconds,
so that sums are exact.
"""

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, final

from common.files import check_regular, parse_json

SECOND = 1_000_000  #: microseconds
LONGEST = 1e12  #: seconds, the largest number in a file
KEYS = ("k", "period", "on")
Interrupted = Literal["lost", "paused"]


@final
@dataclass(frozen=True)
class Trace:
    """Availability of one client: intervals [start, end) within [0, period), in microseconds.

    ``on``: ascending, not empty and not overlapping. ``period``: 0 if they do not repeat.
    """

    on: tuple[tuple[int, int], ...]
    period: int = 0

    def next_on(self, time: int) -> int | None:
        """Return the earliest available time at or after ``time``; None if there is none."""
        cycle, rest = divmod(time, self.period) if self.period else (0, time)
        i = bisect_right(self._ends, rest)
        if i < len(self.on):
            return cycle * self.period + max(rest, self.on[i][0])
        return (cycle + 1) * self.period + self.on[0][0] if self.on and self.period else None

    def finish(self, start: int, duration: int, interrupted: Interrupted) -> tuple[int, bool]:
        """Return when a job ends that begins at the available time ``start``, and if it completes.

        ``lost``: a job that is not complete at the end of its interval ends there. ``paused``: it
        goes on in the next intervals, and ends with the last one if there are no more.
        """
        assert self.next_on(start) == start, "a job starts while its client is available"
        if interrupted == "paused":
            return self._reach(self._available(start) + duration) if duration else (start, True)
        end = self._end(start)
        return (start + duration, True) if end is None or start + duration <= end else (end, False)

    @cached_property
    def _ends(self) -> list[int]:
        return [end for _, end in self.on]

    @cached_property
    def _sums(self) -> list[int]:
        """Available microseconds until the start of each interval, and those of a period."""
        return list(accumulate((end - start for start, end in self.on), initial=0))

    def _end(self, time: int) -> int | None:
        """Return the end of the availability that contains ``time``; None if it never ends.

        Intervals that adjoin are one, also the last of a period and the first of the next.
        """
        cycle, rest = divmod(time, self.period) if self.period else (0, time)
        i = bisect_right(self._ends, rest)
        for _ in range(len(self.on)):
            end = self.on[i][1]
            if i + 1 < len(self.on):
                i, following = i + 1, self.on[i + 1][0]
            elif self.period:
                cycle, i, end, following = cycle + 1, 0, end - self.period, self.on[0][0]
            else:
                return end
            if following != end:
                return cycle * self.period + end
        return None

    def _available(self, time: int) -> int:
        """Return the available microseconds in [0, time)."""
        cycle, rest = divmod(time, self.period) if self.period else (0, time)
        i = bisect_right(self._ends, rest)
        within = max(rest - self.on[i][0], 0) if i < len(self.on) else 0
        return cycle * self._sums[-1] + self._sums[i] + within

    def _reach(self, amount: int) -> tuple[int, bool]:
        """Return the first time until which ``amount`` > 0 microseconds were available.

        The second value is false if that never happens; the time is then the last end.
        """
        total = self._sums[-1]
        if not self.period and amount > total:
            return self._ends[-1], False
        cycle = (amount - 1) // total
        amount -= cycle * total
        i = bisect_left(self._sums, amount) - 1
        return cycle * self.period + self.on[i][0] + amount - self._sums[i], True


def read_traces(path: Path) -> dict[int, Trace]:
    """Return the trace of each client in a file, by client number.

    Raises ``ValueError``, one line with the file, the line and the value, for a file or a line that
    is not as the module describes.
    """
    check_regular(path)
    traces: dict[int, Trace] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                k, trace = _parsed(parse_json(line))
                if k in traces:
                    raise ValueError(f"k = {k} has a trace in an earlier line")
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            traces[k] = trace
    return traces


def to_line(k: int, trace: Trace) -> str:
    """Return the line of client k's trace in a file."""
    on = [[_seconds(time) for time in interval] for interval in trace.on]
    return json.dumps({"k": k, "period": _seconds(trace.period), "on": on}) + "\n"


def _parsed(row: Any) -> tuple[int, Trace]:
    """Return a line's client number and trace; raise ``ValueError`` with the wrong value."""
    if not isinstance(row, dict) or {*row} != {*KEYS}:
        raise ValueError(f"{_shown(row)} should be an object with {', '.join(KEYS)}")
    k, on = row["k"], row["on"]
    if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k <= LONGEST:
        raise ValueError(f"k = {_shown(k)} should be a client number")
    period = _microseconds(row["period"], "period")
    if not isinstance(on, list) or not all(isinstance(i, list) and len(i) == 2 for i in on):
        raise ValueError(f"on = {_shown(on)} should be a list of intervals [start, end]")
    intervals = [(_microseconds(a, "on"), _microseconds(b, "on")) for a, b in on]
    for interval, (start, end) in zip(on, intervals, strict=True):
        if end <= start:
            raise ValueError(f"on has {_shown(interval)}, which is empty: its end should be later")
        if period and end > period:
            raise ValueError(f"on has {_shown(interval)}, beyond period = {row['period']}")
    for i, ((_, end), (start, _)) in enumerate(pairwise(intervals)):
        if start < end:
            raise ValueError(f"on has {_shown(on[i + 1])} after {_shown(on[i])}: it should ascend")
    return k, Trace(tuple(intervals), period)


def _microseconds(value: object, key: str) -> int:
    """Return seconds as microseconds; raise ``ValueError`` unless they are a number in range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
        raise ValueError(f"{key} has {_shown(value)}; it should be seconds from 0 to 1e12")
    return value * SECOND if isinstance(value, int) else round(value * SECOND)


def _seconds(time: int) -> int | float:
    """Return microseconds as seconds, as an integer if they are one."""
    return time // SECOND if time % SECOND == 0 else time / SECOND


def _shown(value: object) -> str:
    """Return the first characters of a value as JSON."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} …"
