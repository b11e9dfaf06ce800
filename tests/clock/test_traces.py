"""Availability traces: their file, when a client is available next, and when a job ends."""

import json
import random
from pathlib import Path

import pytest

from server_app.clock.traces import SECOND, Interrupted, Trace, read_traces, to_line

EXAMPLE = {"k": 3, "period": 172800, "on": [[0, 5400], [61200, 86400]]}


def written(path: Path, *rows: object) -> Path:
    """Write each row as a line; text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_has_a_trace_for_each_client(tmp_path: Path) -> None:
    halves = {"k": 0, "period": 0, "on": [[0.5, 1.25], [1.25, 2]]}
    traces = read_traces(written(tmp_path / "t.jsonl", EXAMPLE, "", halves))
    assert traces[0] == Trace(((500_000, 1_250_000), (1_250_000, 2_000_000)), 0)
    assert traces[3].on == ((0, 5400 * SECOND), (61200 * SECOND, 86400 * SECOND))
    assert traces[3].period == 172800 * SECOND and len(traces) == 2
    assert [json.loads(to_line(k, traces[k])) for k in (3, 0)] == [EXAMPLE, halves]


def test_numbers_by_hand(tmp_path: Path) -> None:
    trace = read_traces(written(tmp_path / "t.jsonl", EXAMPLE))[3]

    def next_on(seconds: float) -> float | None:
        time = trace.next_on(round(seconds * SECOND))
        return None if time is None else time / SECOND

    assert [next_on(t) for t in (0, 5399.5, 5400, 70000)] == [0, 5399.5, 61200, 70000]
    assert [next_on(t) for t in (86400, 172800, 180000)] == [172800, 172800, 172800 + 61200]

    def finish(start: int, seconds: int, interrupted: Interrupted) -> tuple[float, bool]:
        end, complete = trace.finish(start * SECOND, seconds * SECOND, interrupted)
        return end / SECOND, complete

    assert finish(5000, 400, "lost") == finish(5000, 400, "paused") == (5400, True)
    assert finish(5000, 401, "lost") == (5400, False)
    assert finish(5000, 401, "paused") == (61201, True)
    # 400 s until 5400, 25,200 s in the second interval, the rest in the next period
    assert finish(5000, 400 + 25200 + 7, "paused") == (172800 + 7, True)
    # 100 periods of 30,600 available seconds later it is available for as long as now
    assert finish(5000, 100 * 30600, "paused") == (100 * 172800 + 5000, True)


def test_a_trace_that_is_not_repeated_ends() -> None:
    trace = Trace(((10, 20), (30, 35)))
    assert [trace.next_on(t) for t in (0, 19, 20, 34, 35)] == [10, 19, 30, 34, None]
    assert trace.finish(15, 10, "paused") == (35, True)
    assert trace.finish(15, 11, "paused") == (35, False)
    assert trace.finish(32, 4, "lost") == (35, False)
    assert Trace(()).next_on(0) is None and Trace((), 50).next_on(0) is None


def test_intervals_that_adjoin_are_one() -> None:
    night = Trace(((0, 6), (20, 22), (22, 24)), 24)
    assert night.finish(21, 9, "lost") == (30, True), "until 6 of the next period"
    assert night.finish(21, 10, "lost") == (30, False)
    assert night.finish(24 + 21, 10, "lost") == (54, False)
    for always in (Trace(((0, 24),), 24), Trace(((0, 9), (9, 24)), 24)):
        assert always.finish(23, 10**18, "lost") == (10**18 + 23, True)


def test_a_job_starts_while_its_client_is_available() -> None:
    with pytest.raises(AssertionError):
        Trace(((10, 20),), 50).finish(5, 1, "lost")


def drawn(rng: random.Random) -> Trace:
    """Return a trace of a few short intervals, some of which adjoin."""
    marks = sorted(rng.sample(range(15), 2 * rng.randint(1, 4)))
    on = list(zip(marks[::2], marks[1::2], strict=True))
    if rng.random() < 0.3:
        on.append((on[-1][1], on[-1][1] + 2))
    period = rng.choice([0, on[-1][1], on[-1][1] + rng.randint(0, 5)])
    return Trace(tuple(on), period)


@pytest.mark.parametrize("seed", range(20))
def test_a_clock_that_ticks_gives_the_same_times(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        trace, last = drawn(rng), 400
        times = [t % trace.period if trace.period else t for t in range(last)]
        on = [any(start <= t < end for start, end in trace.on) for t in times]
        for t in range(100):
            assert trace.next_on(t) == next((u for u in range(t, last) if on[u]), None)
        start = trace.next_on(rng.randrange(60))
        if start is None:
            continue
        duration = rng.randrange(30)
        off = next((u for u in range(start, last) if not on[u]), last)
        lost = (min(start + duration, off), start + duration <= off)
        assert trace.finish(start, duration, "lost") == lost
        end, complete = trace.finish(start, duration, "paused")
        # the available time until the end is the duration, and not before
        assert sum(on[start:end]) == duration if complete else sum(on[start:]) < duration
        assert end == start or on[end - 1]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("{no", "Expecting property name enclosed in double quotes.*"),
        ("7", r"7 should be an object with k, period, on"),
        ({"k": 1, "on": []}, r'{"k": 1, "on": \[\]} should be an object with k, period, on'),
        ({**EXAMPLE, "k": "3"}, 'k = "3" should be a client number'),
        ({**EXAMPLE, "k": True}, "k = true should be a client number"),
        ({**EXAMPLE, "k": -1}, "k = -1 should be a client number"),
        ({**EXAMPLE, "period": -1}, "period has -1; it should be seconds from 0 to 1e12"),
        ({**EXAMPLE, "period": None}, "period has null; it should be seconds from 0 to 1e12"),
        ({**EXAMPLE, "period": 2e12}, r"period has 2000000000000.0; it should be .*"),
        ({**EXAMPLE, "on": {}}, r"on = {} should be a list of intervals \[start, end\]"),
        ({**EXAMPLE, "on": [[1]]}, r"on = \[\[1\]\] should be a list of intervals .*"),
        ({**EXAMPLE, "on": [[0, "1"]]}, 'on has "1"; it should be seconds from 0 to 1e12'),
        ({**EXAMPLE, "on": [[-2, 1]]}, "on has -2; it should be seconds from 0 to 1e12"),
        ({**EXAMPLE, "on": [[0, float("inf")]]}, "on has Infinity; it should be .*"),
        ({**EXAMPLE, "on": [[5, 5]]}, r"on has \[5, 5\], which is empty: its end should be later"),
        ({**EXAMPLE, "on": [[1e-7, 2e-7]]}, r"on has \[1e-07, 2e-07\], which is empty.*"),
        ({**EXAMPLE, "on": [[0, 172801]]}, r"on has \[0, 172801\], beyond period = 172800"),
        (
            {**EXAMPLE, "on": [[0, 9], [8, 10]]},
            r"on has \[8, 10\] after \[0, 9\]: it should ascend",
        ),
        ({**EXAMPLE, "on": [[8, 9], [1, 2]]}, r"on has \[1, 2\] after \[8, 9\]: it should ascend"),
        (EXAMPLE, "k = 3 has a trace in an earlier line"),
    ],
)
def test_a_wrong_line_is_refused_with_its_value(row: object, line: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", EXAMPLE, row)
    with pytest.raises(ValueError, match=rf"^{path}, line 2: {line}$"):
        read_traces(path)


def test_a_file_that_is_missing_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: cannot be read"):
        read_traces(tmp_path / "none.jsonl")
    (tmp_path / "t.jsonl").write_bytes(b"\x80\x04}")
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1: [^\n]*$"):
        read_traces(tmp_path / "t.jsonl")
