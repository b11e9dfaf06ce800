"""A run can be watched on a terminal and in a log, from the journal alone."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from rich.text import Text

from common.journal import Entry
from common.measures import BITS_PER_BYTE
from common.progress import without_colours
from deploy.report.read import Run, read
from deploy.run.progress import Left, Progress, show_summary
from server_app.storage.journal import follow
from tests.support.run_folder import buffered, clocked, journal_line, write_run


def entry(t: int, accuracy: float | None = 0.5, **more: Any) -> Entry:
    told = {"round": t, "accuracy": accuracy, "seconds": {"total": 2.0}, **more}
    return Entry.model_validate(told)


def log() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=60), file


def test_a_log_gets_one_plain_line_per_round() -> None:
    console, file = log()
    with Progress(2, console) as progress:
        progress.on_phase("starting clients")
        progress.on_phase("starting clients")
        progress.on_round(entry(0, 0.1, clients=[{"k": 0}, {"k": 1}]))
        progress.on_round(entry(1, 0.5))
        progress.on_round(entry(2, 0.4))
    lines = file.getvalue().splitlines()
    assert lines[0] == "starting clients"
    assert lines[1] == "census: 2 clients, accuracy 10.0 % before training"
    assert lines[2].startswith("round 1/2, accuracy 50.0 %, best 50.0 %, ")
    assert lines[3] == "round 2/2, accuracy 40.0 %, best 50.0 %"
    assert len(lines) == 4


def test_a_round_before_the_first_score_names_the_measure_to_come() -> None:
    console, file = log()
    with Progress(3, console, measure=BITS_PER_BYTE) as progress:
        progress.on_round(entry(1, None, primary="personal"))
    assert "personal bits per byte –, best –" in file.getvalue()


def test_a_run_with_device_profiles_shows_the_end_of_the_round_on_the_clock(tmp_path: Path) -> None:
    run = read(clocked(tmp_path / "run"))
    for terminal in (False, True):
        file = io.StringIO()
        with Progress(3, Console(file=file, force_terminal=terminal, width=200)) as progress:
            for one in run.entries[:3]:
                progress.on_round(one)
        shown = Text.from_ansi(file.getvalue()).plain.splitlines()
        text = "clock 20.0 s" if terminal else "best 60.0 %, 20.0 s on the clock, "
        assert any(text in line for line in shown[-2:]), shown
    console, file = log()
    target = {"rounds_to_target": {"target": 0.5, "first": 2, "mean5": None}}
    target["time_to_target"] = {"target": 0.5, "seconds": 20.0}
    (run.path / "summary.json").write_text(json.dumps({"status": "completed", **target}))
    show_summary(read(run.path), console)
    text = " ".join(file.getvalue().split())
    assert "clock 30.0 s on the clients' devices" in text
    assert "mean of 5 in round none, after 20.0 s on the clock" in text


def test_an_asynchronous_round_shows_its_staleness_and_the_jobs_in_flight(tmp_path: Path) -> None:
    run = read(buffered(tmp_path / "run"))
    for terminal in (False, True):
        file = io.StringIO()
        with Progress(3, Console(file=file, force_terminal=terminal, width=200)) as progress:
            for one in run.entries:
                progress.on_round(one)
        shown = Text.from_ansi(file.getvalue()).plain.splitlines()
        before = "clock 15.0 s  " if terminal else "15.0 s on the clock, "
        assert f"{before}staleness 1.5 (at most 2), 2 in flight" in shown[-1], shown
    console, file = log()
    show_summary(run, console)
    assert "staleness 0.7 (at most 2) over 6 updates" in " ".join(file.getvalue().split())


def test_a_failure_is_named_and_cannot_steer_the_terminal() -> None:
    console, file = log()
    reason = "[red]boom[/red]\x1b[2J\r\n" + "x" * 100
    with Progress(2, console) as progress:
        progress.on_round(entry(1, failures=[{"k": 3, "round": 1, "reason": reason}]))
    first, second = file.getvalue().splitlines()
    assert first == "round 1: client 3 failed: [red]boom[/red]�[2J " + "x" * 100
    assert second.endswith("failures 1")
    assert all(c.isprintable() for c in first + second)


def watched(
    rounds: int, *seconds: float, past: Sequence[Entry] = (), start: int = -1
) -> tuple[Progress, list[float], io.StringIO]:
    """Return the progress after rounds that took ``seconds``, its clock and its log."""
    now = [100.0]
    console, file = log()
    progress = Progress(rounds, console, clock=lambda: now[0], past=past, start=start)
    assert progress.left is None
    for t, spent in enumerate(seconds, start=1):
        progress.on_round(entry(t, seconds={"total": spent, "checkpoint": 0.1}))
    return progress, now, file


def test_time_left_is_the_last_rounds_mean_times_the_rounds_to_go() -> None:
    # a slow first round leaves the mean of the last five
    progress, now, file = watched(10, 50.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert progress.left == Left(3.0 * 4, sure=True)
    assert file.getvalue().splitlines()[-1].endswith(", 12 s left")
    now[0] += 2.0
    assert progress.left == Left(3.0 * 4 - 2.0, sure=True)


def test_rounds_that_grow_longer_make_the_estimate_longer_or_a_lower_bound() -> None:
    progress, _, file = watched(10, 5.0, 100.0)
    assert progress.left == Left(100.0 * 8, sure=True), "the newest counts"
    first, second = file.getvalue().splitlines()
    assert first.endswith(", 45 s or more left"), "one round says little about the others"
    assert second.endswith(", 13 min 20 s left")
    progress, now, _ = watched(6, 5.0, 6.0)
    now[0] += 6.0
    assert str(progress.left) == "18 s"
    now[0] += 54.0  # the third round has taken a minute, and so will the three after it, at least
    assert progress.left == Left(180.0, sure=False) and str(progress.left) == "3 min 00 s or more"


def test_the_best_is_of_scored_rounds_and_a_round_that_comes_twice_counts_once() -> None:
    progress = Progress(10, log()[0])
    progress.on_round(entry(0, 0.9))
    assert progress.best is None
    failure = {"k": 0, "round": 1, "reason": "lost"}
    for accuracy in (0.3, 0.3, None):
        t = 1 if accuracy else 2
        progress.on_round(entry(t, accuracy, failures=[failure] if accuracy else []))
    assert progress.best == 0.3 and progress.failures == 1


def test_a_log_gets_a_line_within_a_round_only_after_a_while_without_any() -> None:
    progress, now, file = watched(3, 5.0)
    for text in ("round 2, replies 1/4", "round 2, replies 2/4", "round 2, replies 3/4\x1b[2J"):
        now[0] += 5.0
        progress.on_step(text)
    progress.on_round(entry(2))
    now[0] += 5.0
    progress.on_step("round 3, replies 1/4")
    lines = file.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["round 1/3", "round 2", "round 2/3"]
    assert lines[1] == "round 2, replies 2/4"


def test_a_journal_that_goes_back_counts_from_there_and_repeats_no_line() -> None:
    progress, _, file = watched(6, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0)
    assert progress.left is None
    printed = len(file.getvalue().splitlines())
    for t in (1, 2):
        progress.on_round(entry(t, seconds={"total": 4.0}))  # as in the checkpoint
    assert progress.left == Left(4.0 * 4, sure=True)
    assert len(file.getvalue().splitlines()) == printed
    progress.on_round(entry(3, 0.8))
    (line,) = file.getvalue().splitlines()[printed:]
    assert line.startswith("round 3/6, accuracy 80.0 %") and "-" not in line


@pytest.mark.parametrize("start", [0, 2, 4])
def test_a_resumed_run_shows_and_counts_only_its_own_rounds(start: int) -> None:
    past = [entry(t, 0.9 if t == 1 else 0.2, seconds={"total": 50.0}) for t in range(5)]
    progress, now, file = watched(6, past=past, start=start)
    for old in [*past, *past[: start + 1]]:  # the journal as it was, then rewound
        progress.on_round(old)
        assert progress.left is None
    assert not file.getvalue()
    now[0] += 3.0
    progress.on_round(entry(start + 1, seconds={"total": 3.0}))
    (line,) = file.getvalue().splitlines()
    assert line.startswith(f"round {start + 1}/6, accuracy 50.0 %, best {90 if start else 50}.0 %")
    assert progress.left == Left(3.0 * (5 - start), sure=False)
    now[0] += 1000.0
    assert progress.left is not None and progress.left.seconds >= 0


def test_a_terminal_gets_a_live_line_that_is_put_away_after_an_error() -> None:
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=True)
    with pytest.raises(RuntimeError, match="stop"), Progress(4, console) as progress:
        progress.on_round(entry(3, 0.75))
        progress.on_step("round 4, replies 1/2")
        assert progress._live is not None
        progress._live.refresh()
        raise RuntimeError("stop")
    text = file.getvalue()
    assert "round 3/4" in text and "75.0 %" in text and "round 4, replies 1/2" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_the_summary_lists_every_client_and_the_result(tmp_path: Path) -> None:
    file = io.StringIO()
    members = [{"k": 0, "model": "lenet5", "n": 1200}, {"k": 1, "model": "[b]net", "n": 30}]
    aca = {"amp": 0.7, "fm": 0.1, "wlp": 0.2}
    scores = [
        {"k": 1, "accuracy": 0.9, "accuracy_global": None},
        {"k": 0, "accuracy": 0.8, "accuracy_global": 0.7},
    ]
    scored = {"scores": scores, "fairness": {"main": aca, "models": {"aca": aca}}}
    where = write_run(
        tmp_path / "run",
        [
            entry(0, None, clients=members, seconds={"total": 10}),
            entry(1, 0.625, bytes={"up": 500, "down": 500}, seconds={"total": 40}),
            entry(2, 0.2, failures=[{"k": 1, "round": 2, "reason": "lost\x1b"}]),
            entry(3, 0.5, bytes={"up": 1000, "down": 2000}, seconds={"total": 38}, **scored),
        ],
        rounds=3,
        summary={
            "runtime": "grpc",
            "weights_sha256": "0123456789abcdef0123456789abcdef",
            "rounds_to_target": {"target": 0.6, "first": 1, "mean5": None},
        },
    )
    show_summary(read(where), Console(file=file, width=100))
    text = file.getvalue()
    assert text.index("lenet5") < text.index("[b]net")
    for part in ("1,200", "80.0 %", "70.0 %", "62.5 %", "2.50 kB down, 1.50 kB up", "1 min 30 s"):
        assert part in text
    assert "fedkf on digits, 3 rounds, seed 1" in text and "grpc" in text
    assert "final 50.0 %, best 62.5 %, mean of last 3 scored 44.2 %" in text
    assert "to 60.0 %" in text and "first in round 1, mean of 5 in round none" in text
    assert "SHA-256 0123456789abcdef " in text
    assert "on clients: aca  mean 70.0 % (AMP), worst 20.0 % (WLP)" in text
    assert "client 1, round 2: lost�" in text
    show_summary(Run(tmp_path), Console(file=file, width=100))  # a bare summary is no error


def test_follow_takes_whole_lines_and_a_new_journal_from_its_start(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    seen: list[int] = []

    def add(text: str) -> None:
        with journal.open("a") as file:
            file.write(text)

    first, rest = journal_line('"round": 1')[:9], journal_line('"round": 1')[9:]
    console, file = log()
    steps: Iterator[Callable[[], object]] = iter(
        [
            lambda: None,
            lambda: journal.write_text(journal_line('"round": 0') + first),
            lambda: add(rest + "not json\n[]\n" + journal_line('"round": "x"')),
            lambda: add('{"round": 7}\n{"round": 8}\n' + journal_line('"round": 2')),
            lambda: journal.write_text(journal_line('"round": 0')),
        ]
    )
    states: list[list[int]] = []

    def stop() -> bool:
        states.append(list(seen))
        next(steps)()
        return len(states) == 5

    follow(journal, stop, lambda e: seen.append(e.round), Progress(2, console).warn, poll_s=0.0)
    assert states == [[], [], [0], [0, 1], [0, 1, 2]]
    assert seen == [0, 1, 2, 0]  # what was written before stop() turned true is not lost
    (line,) = file.getvalue().splitlines()  # entries of another release are passed over
    assert line.startswith("the journal has version 1, this release reads version ")


def test_log_lines_have_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = [
        Mock(colored=True, stream=Mock(isatty=lambda tty=tty: tty)) for tty in (True, False)
    ]
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", handlers)
    without_colours()
    assert [handler.colored for handler in handlers] == [True, False]
