"""Traces of FedScale and FLASH as traces of the virtual clock."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.study.traces import convert
from server_app.clock.traces import SECOND, Trace, read_traces
from tests.support.commandline import error_of, typed

PHONE = {"duration": 80, "active": [10, 60, 90], "inactive": [20, 80, 120], "finish_time": 100}
MESSAGES = """2020-01-01 22:00:00\tscreen_off
2020-01-01 22:00:00\tScreen_Lock
2020-01-01 22:30:00\t57.0%
2020-01-01 23:00:00\twifi
2020-01-01 23:30:00\tbattery_charged_on
2020-01-02 01:00:00\tscreen_on
2020-01-02 01:30:00\t4G
2020-01-02 01:40:00\twifi
2020-01-02 02:00:00\tscreen_unlock
2020-01-02 21:00:00\tscreen_lock
2020-01-02 22:00:00\tbattery_charged_off

"""


def saved(path: Path, content: Any) -> Path:
    """Write a file of traces."""
    path.write_text(json.dumps(content))
    return path


def seconds(trace: Trace) -> tuple[list[list[float]], float]:
    """Return the intervals and the period of a trace in seconds."""
    return [[t / SECOND for t in interval] for interval in trace.on], trace.period / SECOND


def test_fedscale_is_available_from_active_to_inactive(tmp_path: Path) -> None:
    found = convert(saved(tmp_path / "f.json", {"7": PHONE, "9": {**PHONE, "inactive": [20]}}))
    assert [seconds(t) for t in found.traces] == [([[10, 20], [60, 80], [90, 100]], 100)]
    assert found.unusable == {"9": "3 times in active, 1 in inactive"}
    assert found.share == 0.4


def fedscale_is_active(entry: dict[str, Any], time: int) -> bool:
    """FedScale's own rule, for a time within the first period."""
    pairs = zip(entry["active"], entry["inactive"], strict=True)
    return any(start <= time <= end for start, end in pairs)


def test_a_client_is_available_when_fedscale_says_so(tmp_path: Path) -> None:
    (trace,) = convert(saved(tmp_path / "f.json", {"7": PHONE})).traces
    for time in range(100):
        own = trace.next_on(time * SECOND) == time * SECOND
        ends = time in PHONE["inactive"]  # type: ignore[operator]
        assert own == (fedscale_is_active(PHONE, time) and not ends), time


def test_flash_is_available_while_locked_on_wifi_and_charging(tmp_path: Path) -> None:
    """Second 0 is 2020-01-02 00:00:00, so that the trace of 24 h begins two hours before it."""
    content = {"a": {"messages": MESSAGES, "model": "m", "guid": "a"}}
    (trace,) = convert(saved(tmp_path / "s.json", content)).traces
    hour = 3600.0
    on = [[0, 1.5 * hour], [5 * hour / 3, 2 * hour], [21 * hour, 22 * hour], [23.5 * hour, 86400]]
    assert seconds(trace) == (on, 86400)
    # a night from 23:30 to 1:30 is one interval
    assert trace.finish(int(23.5 * hour) * SECOND, 7200 * SECOND, "lost")[1]
    assert not trace.finish(int(23.5 * hour) * SECOND, 7201 * SECOND, "lost")[1]


def test_flash_entries_without_a_trace_are_left_out_with_the_reason(tmp_path: Path) -> None:
    wrong = {
        "state": ("2020-01-01 22:00:00\tasleep", "its message '2020-01-01 22:00:00\\tasleep' has"),
        "time": ("22:00\twifi", "its message '22:00\\twifi' has no time"),
        "month": ("2020-13-01 22:00:00\twifi", "month must be in 1..12"),
        "short": ("2020-01-01 22:00:00\twifi", "its messages have one time"),
        "none": ("", "it has no messages"),
        "never": (MESSAGES.replace("wifi", "3g"), "it is never available"),
        "number": (7, "'int' object has no attribute 'split'"),
    }
    content = {"a": {"messages": MESSAGES}, **{k: {"messages": m} for k, (m, _) in wrong.items()}}
    found = convert(saved(tmp_path / "s.json", {**content, "key": {}, "list": []}))
    assert len(found.traces) == 1 and found.unusable["key"] == "no 'messages'"
    assert [*found.unusable] == [*wrong, "key", "list"]
    for name, (_, why) in wrong.items():
        assert found.unusable[name].startswith(why), name


def test_the_command_writes_clients_in_order(tmp_path: Path) -> None:
    never = {"active": [], "inactive": [], "finish_time": 9}
    entries = {"5": PHONE, "1": never, "3": {**PHONE, "active": [0, 60, 90]}, "4": PHONE}
    file, to = saved(tmp_path / "f.json", entries), tmp_path / "new" / "t.jsonl"
    to.parent.mkdir()
    done = typed("study", "traces", file, "--out", to, "--clients", 2)
    assert done.returncode == 0, done.stderr
    assert "without a usable trace: 1; the first is 1: it is never available" in done.stdout
    assert "2 traces; available 45.0% of the time" in done.stdout
    traces = read_traces(to)
    assert [*traces] == [0, 1] and [traces[k].on[0][0] for k in traces] == [10 * SECOND, 0]
    answer = json.loads(typed("study", "traces", file, "--out", to, "--json").stdout)
    assert (answer["clients"], answer["left_out"]) == (3, 1) and [*read_traces(to)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\x80\x04}\x94.", "f: it is a pickle, which is not opened: convert it to JSON (docs/"),
        (b"{", "f: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"[1]", "f: its first client has no active, finish_time, inactive or messages, as "),
        (b"{}", "f: its first client has no active, finish_time, inactive or messages, as "),
        (
            b'{"x": {"active": [1], "inactive": [1], "finish_time": 9}}',
            "f has 0 clients with a usable trace, --clients 2 needs more; x: it is never available",
        ),
    ],
)
def test_another_file_is_one_line(content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    error = error_of("study", "traces", tmp_path / "f", "--out", tmp_path / "t", "--clients", 2)
    assert line in error and not (tmp_path / "t").exists()
