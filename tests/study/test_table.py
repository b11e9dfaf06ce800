"""``fedmosaic table``: cells run once, are found again, and stand beside the paper's numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy import cli
from deploy.run import launch
from deploy.study import costs
from deploy.study import paper_table as table
from deploy.study.recorded import record
from tests.support.tiny import TINY, flat, play

TABLE = """
title = "Two methods"
seeds = [1, 2]
note = "toy data"

[base]
{base}

[[row]]
name = "FedAvg"
set = {{ method = "fedavg" }}

[[row]]
name = "FedAvg, best"
measure = "accuracy.best"
set = {{ method = "fedavg" }}

[[row]]
name = "FedProx"
against = "FedAvg"
set = {{ method = "fedprox", fedprox = {{ mu = 0.5 }} }}

[[column]]
name = "iid"

[expected.FedAvg]
iid = 75.5
"""


@pytest.fixture
def file(tmp_path: Path) -> table.TableFile:
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in TINY.items()]
    path = tmp_path / "two.toml"
    path.write_text(TABLE.format(base="\n".join(lines)))
    return table.read(path)


def journal(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]


def fill(file: table.TableFile, folder: Path) -> list[tuple[str, int, bool]]:
    heard: list[tuple[str, int, bool]] = []
    quiet = Console(quiet=True)
    table.run(
        file,
        folder,
        lambda cell, at: launch.cell(cell.flat, at, 0, quiet),
        lambda i, of, cell, recorded: heard.append((cell.row, cell.seed, recorded)),
    )
    return heard


def test_a_cell_is_run_once_and_rows_may_share_it(file: table.TableFile, tmp_path: Path) -> None:
    first = fill(file, tmp_path / "out")
    assert [recorded for _, _, recorded in first] == [False, False, True, True, False, False]
    assert all(recorded for _, _, recorded in fill(file, tmp_path / "out"))
    filled = table.collect(file, tmp_path / "out")
    cell = filled.cell("FedAvg", "iid")
    assert len(cell.values) == 2 and cell.expected == 75.5
    alone = play(flat(tmp_path / "alone", method="fedavg", seed=2))
    assert cell.values[1] == pytest.approx(100 * alone.summary["accuracy"]["final"])
    best = filled.cell("FedAvg, best", "iid").values
    assert best[1] == pytest.approx(100 * alone.summary["accuracy"]["best"])
    (fedavg, fedprox) = (filled.cell(row, "iid").values for row in ("FedAvg", "FedProx"))
    (a, b) = (y - x for x, y in zip(fedavg, fedprox, strict=True))
    half = 12.7062 * abs(a - b) / 2  # t of 1 at 0.975, s / √2 = |a − b| / 2
    apart = f"FedProx less FedAvg, seed by seed: iid: {(a + b) / 2:.2f} ± {half:.2f}."
    assert filled.notes == (apart, "toy data")
    written = table.write(filled, file, tmp_path / "out", "two")
    assert [path.suffix for path in written] == [".md", ".html", ".tex", ".csv", ".json", ".png"]
    assert r"\toprule" in written[2].read_text() and ",2,75.5\n" in written[3].read_text()
    assert "(75.50)" in written[0].read_text() and "toy data" in written[0].read_text()


def test_a_cell_that_was_cut_off_goes_on_from_its_checkpoint(
    file: table.TableFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from server_app.strategy import MethodStrategy

    played, play_round = [], MethodStrategy.play_round

    def cut_off(strategy: MethodStrategy, t: int) -> None:
        played.append(t)
        if played.count(2) == 1 and t == 2:
            raise KeyboardInterrupt
        play_round(strategy, t)

    monkeypatch.setattr(MethodStrategy, "play_round", cut_off)
    with pytest.raises(KeyboardInterrupt):
        fill(file, tmp_path / "out")
    fill(file, tmp_path / "out")
    assert played[:4] == [1, 2, 2, 1], "round 1 of the first cell is not played again"


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        ("iid = 75.5", "iid = 75.5\nother = 1.0", "expected.FedAvg.other stands for no cell"),
        ('method = "fedavg"', 'methot = "fedavg"', "did you mean 'method'?"),
        ("seeds = [1, 2]", "seeds = []", "seeds = [] is not allowed; it should be a list that is"),
        ("seeds = [1, 2]", "seeds = 1", "seeds = 1 is not allowed; it should be list"),
        ("seeds = [1, 2]", "", "key 'seeds' is missing"),
        ('against = "FedAvg"', 'against = "nobody"', "against = 'nobody' is no row"),
        ("note =", "nota =", "key 'nota' is unknown; did you mean 'note'?; allowed: title, seeds"),
        ("against =", "agains =", "key 'row.2.agains' is unknown; did you mean 'against'?; all"),
        ("note =", "note ", "bad.toml is not valid TOML: "),
    ],
)
def test_a_mistake_in_a_table_file_is_one_line(
    change: str, line: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(TABLE.format(base="").replace(change, line, 1))
    with pytest.raises(ValueError) as caught:
        list(table.cells(table.read(path)))
    assert "\n" not in str(caught.value) and said in str(caught.value)


def test_a_mistake_in_the_last_row_is_said_before_anything_runs(tmp_path: Path) -> None:
    path, out = tmp_path / "bad.toml", tmp_path / "out"
    path.write_text(TABLE.format(base="").replace("mu = 0.5", "my = 0.5"))
    with pytest.raises(ValueError, match=r"key 'fedprox\.my' is unknown; did you mean"):
        cli.table(path, to=out, workers=0, show=False, canaries=False, as_json=False)
    assert not out.exists()


def test_rows_with_different_seeds_are_compared_over_those_of_both(
    file: table.TableFile, tmp_path: Path
) -> None:
    longer = file.row[0].model_copy(update={"seeds": [2, 3, 1]})
    file = file.model_copy(update={"row": [longer, *file.row[1:]]})
    fill(file, tmp_path)
    filled = table.collect(file, tmp_path)
    ours, theirs = (filled.cell(row, "iid").values for row in ("FedProx", "FedAvg"))
    assert (len(ours), len(theirs)) == (2, 3)
    mean = (ours[0] - theirs[2] + ours[1] - theirs[0]) / 2
    assert filled.notes[0].startswith(f"FedProx less FedAvg, seed by seed: iid: {mean:.2f} ± ")


def test_a_target_that_is_not_reached_is_infinite_and_no_missing_run(tmp_path: Path) -> None:
    base = {**TINY, "method": "fedavg", "train.lr": 1e-6, "score.stop": True}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in base.items()]
    rows = "".join(
        f'[[row]]\nname = "{name}"\nset = {{ "score.target" = {target} }}\n'
        for name, target in (("low", 0.001), ("high", 1.0))
    )
    head = 'title = "Rounds"\nseeds = [1]\nunit = ""\nmeasure = "rounds_to_target.first"\n[base]\n'
    path = tmp_path / "rounds.toml"
    path.write_text(head + "\n".join([*lines, rows, '[[column]]\nname = "c"\n']))
    file = table.read(path)
    fill(file, tmp_path / "out")
    filled = table.collect(file, tmp_path / "out")
    assert filled.cell("low", "c").values == (1.0,)
    assert filled.cell("high", "c").values == (math.inf,)


def test_rounds_to_another_rows_end_remain_when_the_journals_are_gone(tmp_path: Path) -> None:
    base = {**TINY, "method": "fedavg", "rounds": 4}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in base.items()]
    rows = "".join(
        f'[[row]]\nname = "{name}"\nset = {{ "train.lr" = {lr} }}\n'
        for name, lr in (("slow", 0.02), ("still", 1e-9), ("fast", 0.1))
    )
    head = 'title = "Reach"\nseeds = [1]\nunit = ""\nmeasure = "accuracy"\n[base]\n'
    path, out = tmp_path / "reach.toml", tmp_path / "out"
    path.write_text(head + "\n".join([*lines, rows, '[[column]]\nname = "c"\nreach = "slow"\n']))
    file = table.read(path)
    fill(file, out)
    cells = {cell.row: out / "cells" / cell.fingerprint for cell in table.cells(file)}
    course = [line["accuracy"] for line in journal(cells["fast"])][1:]
    goal = journal(cells["slow"])[-1]["accuracy"]
    first = next(t for t, accuracy in enumerate(course, 1) if accuracy >= goal)

    def values(row: str) -> tuple[float, ...]:
        return table.collect(file, out).cell(row, "c").values

    assert values("fast") == (first,) and values("still") == (math.inf,)
    for place in cells.values():
        (place / "journal.jsonl").unlink()
    assert values("fast") == (first,) and values("still") == (math.inf,)
    (cells["fast"] / "reached.json").unlink()
    assert values("fast") == ()
    (cells["still"] / "reached.json").write_text("[")
    with pytest.raises(ValueError, match=r"reached\.json is damaged"):
        values("still")


def test_what_is_not_run_stays_empty(file: table.TableFile, tmp_path: Path) -> None:
    assert table.collect(file, tmp_path).cell("FedAvg", "iid").values == ()


def test_accuracy_stands_against_the_bytes_that_a_client_sent(
    file: table.TableFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    assert costs.pictures(table.collect(file, folder), file, folder, "two") == []
    fill(file, folder)
    drawn: list[costs.Panels] = []
    real = costs.png
    monkeypatch.setattr(costs, "png", lambda *told: (drawn.append(told[3]), real(*told)))
    filled = table.collect(file, folder)
    (path,) = costs.pictures(filled, file, folder, "two")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert drawn[0].keys() == {"iid"} and drawn[0]["iid"].keys() == set(filled.rows)
    spot, cell = drawn[0]["iid"]["FedProx"], filled.cell("FedProx", "iid")
    up = [
        record(folder / "cells" / c.fingerprint)["bytes"]["up"]  # type: ignore[index]
        for c in table.cells(file)
        if c.row == "FedProx"
    ]
    assert spot.cost == pytest.approx(sum(up) / len(up) / TINY["clients"] / 1e6)
    assert (spot.value, spot.interval) == (cell.mean, cell.interval)


def test_accuracy_stands_against_the_operations_of_training(
    file: table.TableFile, tmp_path: Path
) -> None:
    counted = file.model_copy(update={"base": {**file.base, "flops": True}})
    fill(counted, tmp_path)
    drawn = costs.pictures(table.collect(counted, tmp_path), counted, tmp_path, "two")
    assert [path.name for path in drawn] == ["two-bytes.png", "two-flops.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_what_is_no_accuracy_is_not_drawn(file: table.TableFile, tmp_path: Path) -> None:
    fill(file, tmp_path)
    seconds = file.model_copy(update={"measure": "seconds", "row": [file.row[0], file.row[2]]})
    assert costs.pictures(table.collect(seconds, tmp_path), seconds, tmp_path, "two") == []
