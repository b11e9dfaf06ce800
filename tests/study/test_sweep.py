"""``fedmosaic sweep``: configurations of an experiment, chosen on validation samples."""

import json
import os
import random
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import fedmosaic
import psutil
import pytest
from matplotlib.image import imread

from common.settings.version import ROOT, VERSION
from deploy.study import paper_table, records, runner, sweep
from deploy.study.paper_table import CellRun
from tests.support.commandline import completed, error_of, interruptible
from tests.support.own_modules import ONE_MODULE, package
from tests.support.recorded_calls import refusal
from tests.support.waiting import PATIENCE, until

TOY = {"name": "toy", "samples": 120, "test-samples": 60, "partition": "iid", "validation": 0.25}
BASE: dict[str, object] = {"method": "fedavg", "clients": 2, "rounds": 2, "fleet": "mlp@0.25"}
BASE |= {"data": TOY, "train": {"epochs": 1}}
RATES = {"train": {"lr": [0.000001, 0.1]}}
SCRIPT = """
import fedmosaic
found = fedmosaic.sweep({content!r}, out="swept", jobs=2)
print("means", [round(mean, 3) for mean in found["mean"]])
run = fedmosaic.run(workers=2, out="out", quiet=True, **{base!r})
same = run.accuracy == run.summary["accuracy"]["final"]
print(fedmosaic.__version__, same, run.summary["failures"])
"""


def content(**changes: object) -> dict[str, object]:
    """The keys of a sweep file: two rates and two seeds."""
    return {"title": "Rates", "seeds": [1, 2], "base": BASE, "space": RATES, **changes}


def file(**changes: object) -> sweep.SweepFile:
    return sweep.read(content(**changes))


def test_a_picture_has_room_for_every_panel(tmp_path: Path) -> None:
    keys = ("train.lr", "train.epochs", "seed", "rounds")
    one = Mock(configurations={"a": dict.fromkeys(keys, 1)}, best="a")
    one.filled.title, one.filled.cell.return_value.mean = "t", 50.0
    heights = []
    for count in (3, 4):  # one row of panels, and two
        sweep.picture(one, keys[:count], tmp_path / "p.png")
        heights.append(len(imread(tmp_path / "p.png")))
    assert 1.6 < heights[1] / heights[0] < 2


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in content().items() if name != key}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A sweep by ``fedmosaic.sweep``: its folder and the data frame."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, fedmosaic.sweep(content(), out=folder, jobs=2)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (without("space"), "sweep has no [space]"),
        (content(base={**BASE, "data": {"name": "toy"}}), "data.validation is 0; a sweep scores"),
        (content(base={**BASE, "data.score-on": "test"}), 'data.score-on = "test" is not allowed'),
        (content(space={"data.score-on": ["test"]}), "data.score-on is not allowed in [space]"),
        (content(space={"seed": [1, 2]}), "seed is not allowed in [space]"),
        (content(space={"train.lr": {"low": 0.1, "high": 1.0}}), "space.train.lr is a range"),
        (content(search="random", space={"a": {"low": 1, "high": 1}}), "should be below high = 1"),
        (content(search="random", space={"a": {"low": 0, "high": 1, "log": True}}), "above 0"),
        (content(space={"train.lr": []}), "space.train.lr = [] is not allowed; it should be a"),
        (content(space={"train": {"lr": [[0.1]]}}), "space.train.lr = [[0.1]] is not allowed"),
        (content(space={"train.lr": [1, 1.0]}), "space.train.lr = [1, 1.0] has 1.0 more than once"),
        (content(space={"train.lr": {"low": 1, "high": 2, "lgo": True}}), "lgo' is unknown"),
        (content(space={"fedkf.gamma": [0.1, 1.0]}), "space.fedkf.gamma is not read by fedavg"),
        (content(space={"name": ["a", "b"]}), "name is not allowed in [space]"),
        (content(seeds=[1, 2, 1]), "seeds = [1, 2, 1] has 1 more than once"),
        (content(format="two"), 'format = "two" is not allowed'),
        (content(prune=True, measure="bytes.up"), 'it needs measure = "primary.final"'),
        (content(prune=True, better="lower"), 'it needs measure = "primary.final" and no better'),
        (content(serach="grid"), "key 'serach' is unknown"),
        (content(search="best"), "'grid', 'random' or 'optuna'"),
    ],
)
def test_a_mistake_is_one_line(changed: dict[str, object], line: str) -> None:
    assert line in refusal(sweep.read, changed)


def test_a_space_has_a_setting_of_one_client_and_the_names_of_python() -> None:
    assert list(file(space={"node.0.model": ["mlp@0.25", "mlp@0.5"]}).space) == ["node.0.model"]
    spec = sweep.read(content(space={"train": {"batch_size": [8, 16]}}, search_seed=3))
    assert list(spec.space) == ["train.batch-size"] and spec.search_seed == 3


def test_a_wrong_value_and_a_damaged_file_are_refused_before_any_run(tmp_path: Path) -> None:
    wrong = file(space={"train.lr": [0.1, -1.0]})
    with pytest.raises(ValueError, match=r"row 'train.lr = -1.0'.*train.lr"):
        sweep.run(wrong, tmp_path, jobs=1)
    with pytest.raises(ValueError, match="jobs = -1 is not allowed; it should be at least 1"):
        fedmosaic.sweep(content(), out=tmp_path, jobs=-1)
    (tmp_path / runner.UNFINISHED).write_text("{")
    damaged = r"unfinished.json is damaged: .*; delete it to try again$"
    with pytest.raises(ValueError, match=damaged):
        sweep.run(file(), tmp_path, jobs=1)
    assert not any((tmp_path / name).exists() for name in (records.NAME, records.RUNS))


def test_a_measure_that_runs_do_not_have_ends_the_sweep_after_the_first(tmp_path: Path) -> None:
    wrong = file(measure="primary.finall")
    with pytest.raises(ValueError, match="primary.finall.* did you mean 'primary.final'"):
        sweep.run(wrong, tmp_path, jobs=1)
    assert len(records.read(tmp_path)) == 1


def test_a_sweep_does_not_replace_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(sweep_toml())
    assert "which the sweep's table would replace" in error_of("sweep", path, "--out", tmp_path)
    with pytest.raises(ValueError, match="the sweep's result has this name"):
        sweep.target(tmp_path / sweep.CHOSEN, None)
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        fedmosaic.sweep(tmp_path)


def test_a_sweep_finds_the_users_method_beside_its_file(tmp_path: Path) -> None:
    own = f"{package(tmp_path, {'factor': ONE_MODULE})}:factor"
    path = tmp_path / "rates.toml"
    path.write_text(sweep_toml(method=own, rounds=1))
    found = fedmosaic.sweep(path, out=tmp_path / "out", jobs=1)
    assert list(found["seeds"]) == [2, 2] and list(found["unfinished"]) == ["", ""]


@pytest.mark.full
def test_a_script_without_a_main_guard_sweeps(swept: tuple[Path, Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(content=content(), base=BASE))
    line, env = [sys.executable, "script.py"], {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    means = [round(mean, 3) for mean in swept[1]["mean"]]
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"means {means}\n{VERSION} True []\n"


def test_the_best_configuration_on_validation_samples_is_chosen(swept: tuple[Path, Any]) -> None:
    folder, frame = swept
    assert list(frame.index) == ["train.lr = 1e-06", "train.lr = 0.1"]
    assert list(frame["train.lr"]) == [0.000001, 0.1] and list(frame["seeds"]) == [2, 2]
    assert frame["mean"].iloc[0] < frame["mean"].iloc[1]
    assert list(frame["chosen"]) == [False, True] and list(frame["unfinished"]) == ["", ""]
    for cell in records.read(folder).values():
        assert cell.summary["scored_on"] == "validation"
    text = (folder / sweep.CHOSEN).read_text()
    assert text.startswith("# Rates: best of 2 configurations on validation samples, ")
    settings = tomllib.loads(text)
    assert settings["train"] == {"lr": 0.1, "epochs": 1}
    assert "validation" not in settings["data"] and "score-on" not in settings["data"]
    for name in ("sweep.png", "sweep-space.png", "sweep.md", "sweep.json"):
        assert (folder / name).stat().st_size > 0


def test_its_table_is_one_for_fedmosaic_table_and_needs_no_run(swept: tuple[Path, Any]) -> None:
    folder, frame = swept
    table = paper_table.read(folder / "sweep.toml")
    assert runner.missing(paper_table.cells(table), folder) == []
    filled = paper_table.collect(table, folder)
    means = [filled.cell(row, sweep.COLUMN).mean for row in filled.rows]
    assert means == list(frame["mean"])


def test_a_complete_sweep_runs_nothing_again(swept: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = swept
    played: list[CellRun] = []
    found = sweep.run(file(), folder, jobs=1, on_cell=lambda cell, _: played.append(cell))
    assert played == [] and found.best == "train.lr = 0.1"
    path = tmp_path / "rates.toml"
    path.write_text(sweep_toml())
    done = completed("sweep", path, "--out", folder)
    assert "best on validation samples: train.lr = 0.1" in done.stdout
    assert (folder / "rates-space.png").exists()


@pytest.mark.full
def test_ctrl_c_ends_a_sweep_with_its_runs_and_says_how_to_go_on(tmp_path: Path) -> None:
    path, out = tmp_path / "rates.toml", tmp_path / "out"
    path.write_text(sweep_toml(rounds=100000))
    process = interruptible("sweep", path, "--out", out, "--jobs", "2")

    def checkpoints() -> list[Path]:
        return list((out / records.RUNS).glob("*/checkpoint.safetensors"))

    try:
        until("two runs", lambda: len(checkpoints()) == 2 or process.poll() is not None)
        runs = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == f"interrupted; go on with: fedmosaic sweep {path} --out {out} --jobs 2\n"
    assert psutil.wait_procs(runs, timeout=PATIENCE)[1] == [], "no process goes on"
    assert len(checkpoints()) == 2


def sweep_toml(**changes: object) -> str:
    """``content()`` as a file, with other settings in its base."""
    base = file(base={**BASE, **changes}).fixed()
    return f"""
title = "Rates"
seeds = [1, 2]
[base]
{chr(10).join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in base.items())}
[space.train]
lr = [0.000001, 0.1]
"""


@pytest.mark.full
def test_a_configuration_that_diverges_is_named_and_not_repeated(tmp_path: Path) -> None:
    diverges = file(seeds=[1], space={"train.lr": [1e30, 0.1]})
    said: list[tuple[str, str]] = []
    found = sweep.run(diverges, tmp_path, 1, on_cell=lambda cell, why: said.append((cell.row, why)))
    assert found.best == "train.lr = 0.1"
    assert list(found.unfinished) == ["train.lr = 1e+30"]
    assert [row for row, why in said if why] == ["train.lr = 1e+30"]
    reason = found.unfinished["train.lr = 1e+30"]
    assert "\n" not in reason and "--resume" not in reason and str(tmp_path) not in reason
    said.clear()
    again = sweep.run(diverges, tmp_path, 1, on_cell=lambda cell, why: said.append((cell.row, why)))
    assert said == [] and again.unfinished == found.unfinished


def test_random_draws_are_distinct_lie_in_the_space_and_depend_on_the_seed_alone() -> None:
    space = {"a": {"low": 1e-4, "high": 1.0, "log": True}, "b": {"low": 2, "high": 9}, "c": [1, 2]}

    def drawn(seed: int) -> list[Mapping[str, Any]]:
        changes = {"search": "random", "configurations": 40, "search-seed": seed, "space": space}
        return sweep.planned(file(**changes))

    some = drawn(0)
    assert len({sweep.name(one) for one in some}) == 40
    assert all(1e-4 <= one["a"] <= 1 and 2 <= one["b"] <= 9 and one["c"] in (1, 2) for one in some)
    assert all(type(one["b"]) is int for one in some)
    assert 5 < sum(one["a"] < 0.01 for one in some) < 35, "the logarithm is uniform"
    assert some == drawn(0) != drawn(1)
    few = file(search="random", configurations=40, space={"c": [1, 2]})
    assert len(sweep.planned(few)) == 2, "the space has no more"
    source = random.Random(1)
    for log in (False, True):
        some = {sweep.Range(low=1, high=3, log=log).draw(source) for _ in range(60)}
        assert some == {1, 2, 3}, "a range draws its ends too"


def test_optuna_proposes_by_what_it_was_told_and_the_same_again() -> None:
    pytest.importorskip("optuna")
    space = {"a": {"low": 0.0, "high": 1.0}, "b": ["x", "y"]}
    spec = file(search="optuna", configurations=30, space=space)

    def proposals(best: float) -> list[float]:
        asked: list[float] = []

        def score(some: list[dict[str, Any]]) -> list[float | None]:
            assert len(some) <= sweep.BATCH
            lost = [one["b"] == "y" and one["a"] > 0.9 for one in some]
            scores = [-abs(one["a"] - best) for one in some]
            asked.extend(one["a"] for one in some)
            return [None if no else value for no, value in zip(lost, scores, strict=True)]

        sweep.optimise(spec, score)
        return asked

    low = proposals(0.1)
    assert len(low) == 30 and low == proposals(0.1)
    late_low, late_high = sorted(low[18:]), sorted(proposals(0.9)[18:])
    assert late_low[len(late_low) // 2] < late_high[len(late_high) // 2]


@pytest.mark.parametrize("search", ["grid", "optuna"])
@pytest.mark.parametrize(
    ("measure", "better", "best"),
    [("bits_per_byte", {}, 0.1), ("r2", {}, 0.4), ("r2", {"better": "lower"}, 0.1)],
)
def test_the_best_configuration_follows_the_direction_of_the_score(
    search: str,
    measure: str,
    better: dict[str, str],
    best: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if search == "optuna":
        pytest.importorskip("optuna")
    more = {"search": search, "configurations": 12, **better}
    spec = file(seeds=[1], space={"train.lr": [0.2, 0.1, 0.4, 0.3]}, **more)

    def run(todo: list[CellRun], _: object) -> None:
        for cell in todo:
            summary = {"primary": {"final": cell.flat["train.lr"], "measure": measure}}
            known = {"fingerprint": cell.fingerprint, "settings": {}, "seed": 1}
            records.append(tmp_path, records.Recorded(summary=summary, **known))

    monkeypatch.setattr(sweep, "Runner", lambda *_: Mock(run=run))
    found = sweep.run(spec, tmp_path, jobs=1)
    assert found.best == f"train.lr = {best}"
    assert found.filled.cell(found.best, sweep.COLUMN).mean == best
    assert better or found.filled.best(sweep.COLUMN) == {found.best}


@pytest.mark.parametrize(("t", "score", "ends"), [(1, 0.0, True), (1, 1.0, False), (0, 0.0, False)])
def test_a_run_below_the_median_of_the_others_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, t: int, score: float, ends: bool
) -> None:
    spec = file(seeds=[1], prune=True, space={"train.lr": [0.1, 0.2, 0.3, 0.4, 0.5]})
    plan = sweep.as_table(spec, sweep.planned(spec))
    *others, last = todo = list(paper_table.cells(plan))
    for cell, value in zip(others, (0.4, 0.5, 0.6, 0.7), strict=True):
        curve = {"round": [0, 1, 2], "primary": [None, value, value]}
        more = {"settings": {}, "seed": 1, "summary": {}, "curve": curve}
        one = records.Recorded(fingerprint=cell.fingerprint, **more)
        records.append(tmp_path, one)
    process = Mock()
    running = runner.Running(last, tmp_path, process, cast("Any", None))
    monkeypatch.setattr(sweep, "_latest", lambda place: (t, score))
    sweep.prune(todo, tmp_path, [running])
    assert process.terminate.call_count == ends
    why = "ended in round 1, 0.0%; the others' median is 55.0%"
    assert running.stopped == (why if ends else "")
