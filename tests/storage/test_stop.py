"""``score.stop``: a run ends, complete, with the round that reaches its target."""

import io
import logging
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.report.pages import write_report
from deploy.report.read import read
from deploy.run.progress import Progress, show_summary
from server_app.stopped import Stopped
from server_app.strategy import MethodStrategy
from tests.support.commandline import error_of
from tests.support.run_folder import census, entry, write_run
from tests.support.tiny import TinyRun, flat, play

SURE = {"score__stop": True, "score__target": 0.001}
"""A target that round 1 reaches, whatever comes of it."""


def fedavg(folder: Path, **changes: Any) -> dict[str, Any]:
    return flat(folder, **{"method": "fedavg", "rounds": 4, "train__lr": 0.02, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return play(fedavg(tmp_path_factory.mktemp("whole"), score__clients_every=1))


@pytest.fixture(scope="module")
def target(whole: TinyRun) -> float:
    """An accuracy that a round before the last is the first to reach."""
    return float(max(e["accuracy"] for e in whole.journal[1:-1]))


def first(run: TinyRun, target: float) -> int:
    return next(e["round"] for e in run.journal[1:] if e["accuracy"] >= target)


def test_the_run_ends_complete_with_the_round_that_reaches_the_target(
    whole: TinyRun, target: float, tmp_path: Path
) -> None:
    end, given = first(whole, target), {"score__target": target, "score__clients_every": 1}
    run = play(fedavg(tmp_path / "run", score__stop=True, **given))
    *before, last = run.timeless
    assert len(before) == end and last.pop("reached") == target
    assert [*before, last] == whole.timeless[: end + 1]
    assert run.weights == play(fedavg(tmp_path / "short", rounds=end)).weights != whole.weights
    told = run.summary
    assert (told["status"], told["ended"], told["rounds"]) == ("completed", "target", end)
    assert told["rounds_to_target"] == {"target": target, "first": end, "mean5": None}
    assert told["accuracy"]["final"] == last["accuracy"] and told["fairness"]["amp"] > 0
    assert whole.summary["ended"] == "rounds"


def test_clients_are_scored_where_it_ends_and_only_scored_rounds_count(tmp_path: Path) -> None:
    run = play(fedavg(tmp_path, score__every=3, **SURE))
    assert [e.get("accuracy") is not None for e in run.journal] == [True, False, False, True]
    assert [bool(e.get("scores")) for e in run.journal] == [False, False, False, True]


def test_without_a_score_it_takes_all_its_rounds(tmp_path: Path) -> None:
    run = play(fedavg(tmp_path, method="local", rounds=2, data__test_fraction=0.0, **SURE))
    assert run.summary["rounds"] == 2 and run.summary["ended"] == "rounds"


def test_resuming_a_run_that_ended_so_does_nothing_and_its_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = fedavg(tmp_path, runtime="loopback", **SURE)
    with caplog.at_level(logging.INFO, "flwr.fedmosaic"):
        play(settings)
    assert "the run ends: target 0.1 % is reached" in caplog.text
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    line = r"the run is complete: score.target = 0.001 was reached in round 1; for more: "
    with pytest.raises(Stopped, match=line):
        play({**settings, "resume": True})
    error = error_of("run", "--resume", tmp_path, "--workers", "0")
    assert "for more: -s score.stop=false" in error
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_it_goes_on_where_it_is_told_not_to_stop(whole: TinyRun, tmp_path: Path) -> None:
    play(fedavg(tmp_path, score__clients_every=1, **SURE))
    more = {**SURE, "score__stop": False, "score__clients_every": 1, "resume": True}
    run = play(fedavg(tmp_path, **more))
    assert run.weights == whole.weights and run.summary["ended"] == "rounds"
    assert run.summary["rounds_to_target"]["first"] == 1


def test_killed_before_its_summary_it_is_finished_without_another_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play(fedavg(tmp_path, **SURE))
    (tmp_path / "summary.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(MethodStrategy, "play_round", None)
        mended = play(fedavg(tmp_path, resume=True, **SURE))
    assert mended.timeless == run.timeless and mended.weights == run.weights
    assert mended.summary["ended"] == "target"


def test_a_log_and_a_terminal_say_that_it_is_over() -> None:
    for terminal in (False, True):
        file = io.StringIO()
        console = Console(file=file, width=200, force_terminal=terminal)
        with Progress(9, console) as progress:
            progress.on_round(entry(1, 0.5))
            assert progress.left is not None
            progress.on_round(entry(2, 0.7, reached=0.6))
            assert progress.left is None
        last = file.getvalue().rpartition("round 2/9")[2]
        assert "target 60.0 % is reached" in last and "left" not in last


def test_the_report_and_the_result_say_that_it_is_over(tmp_path: Path) -> None:
    entries = [census(), entry(1, 0.5), entry(2, 0.7, reached=0.6)]
    folder = write_run(tmp_path / "run", entries, rounds=9, summary={"status": "completed"})
    run = read(folder)
    assert run.finished and run.notes == [] and run.reached == "2 of 9"
    file = io.StringIO()
    show_summary(run, Console(file=file, width=100))
    assert "round 2 of 9: target 60.0 % is reached" in file.getvalue()
    write_report([folder], tmp_path / "report.html")
    assert "2 rounds: target 60.0 % is reached" in (tmp_path / "report.html").read_text()
    resumed = write_run(tmp_path / "on", [*entries, entry(3, 0.8)], rounds=9, summary={})
    assert not read(resumed).finished


def best_round(run: TinyRun) -> int:
    scores = [e["accuracy"] for e in run.journal[1:]]
    return scores.index(max(scores)) + 1


def test_it_ends_after_patience_without_a_new_best_score(tmp_path: Path) -> None:
    settings = fedavg(tmp_path, rounds=30, train__lr=1e-6, score__patience=2)
    run = play(settings)
    end, best = run.summary["rounds"], best_round(run)
    assert end == best + 2 < 30 and run.journal[-1]["stalled"] == 2
    assert (run.summary["ended"], run.summary["stalled"]) == ("patience", 2)
    assert run.journal[-1]["scores"], "clients are scored where it ends"
    whole = play(fedavg(tmp_path / "whole", rounds=end, train__lr=1e-6, score__clients_every=30))
    last = {key: value for key, value in run.timeless[-1].items() if key != "stalled"}
    assert [*run.timeless[:-1], last] == whole.timeless and "stalled" not in whole.summary
    assert read(tmp_path).finished
    line = rf"the run is complete: score.patience = 2 ended it in round {end}; for more: -s score"
    with pytest.raises(Stopped, match=line):
        play({**settings, "resume": True})
    more = play({**settings, "resume": True, "score.patience": 3})
    assert more.summary["rounds"] == best_round(more) + 3 > end


def test_without_a_global_model_the_clients_own_scores_count(tmp_path: Path) -> None:
    given = {"rounds": 30, "train__lr": 1e-6, "score__patience": 2, "score__clients_every": 1}
    run = play(fedavg(tmp_path, method="local", **given))
    scores = [e["fairness"]["main"]["amp"] for e in run.journal[1:]]
    assert run.summary["rounds"] == scores.index(max(scores)) + 3 < 30
    assert run.summary["ended"] == "patience"
