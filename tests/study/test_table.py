"""``fedmosaic table``: cells run once, are found again, and stand beside the paper's numbers.

Parts of a table (``--row``, ``--column``, ``--seed``) fill the same record.
"""

import json
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from common.parse import defaults
from deploy.run import launch
from deploy.study import commands, costs, records, runner
from deploy.study import paper_table as table
from deploy.study.paper_table import options, selected_cells
from deploy.study.records import Recorded
from tests.support.board import TABLE
from tests.support.commandline import error_of, typed
from tests.support.recorded_calls import refusal
from tests.support.run_folder import clocked
from tests.support.tiny import TINY, flat, play

ROWS = {
    "FedAvg": 'set = { method = "fedavg" }',
    "FedAvg, best": 'measure = "accuracy.best"\nset = { method = "fedavg" }',
    "FedProx": 'against = "FedAvg"\nset = { method = "fedprox", fedprox = { mu = 0.5 } }',
}
END = "[expected.FedAvg]\niid = 75.5\n"
TEN = "ten, twice"
SWITCHED = f"""
[[row]]
name = "{TEN}"
seeds = [1, 2, 7]
against = "A"
set = {{ method = "fedavg", train = {{ lr = 0.02 }} }}
"""
Filled = tuple[table.TableFile, Path]


def text(
    rows: dict[str, str], end: str, *, seeds: str = "[1, 2]", head: str = "", **base: Any
) -> str:
    """A table file with one column, ``iid``, whose further lines are ``end``."""
    lines = ['title = "Two methods"', f"seeds = {seeds}", 'note = "toy data"', head, "[base]"]
    settings = TINY | {key.replace("_", "."): value for key, value in base.items()}
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items()]
    for name, more in rows.items():
        lines += ["[[row]]", f'name = "{name}"', more]
    return "\n".join([*lines, "[[column]]", 'name = "iid"', end])


def made(folder: Path, *what: Any, **more: Any) -> table.TableFile:
    (folder / "two.toml").write_text(text(*what, **more))
    return table.read(folder / "two.toml")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A table whose runs count their operations, and the folder in which it was filled."""
    folder = tmp_path_factory.mktemp("table")
    file = made(folder, ROWS, END, flops=True)
    first = fill(file, folder / "out")
    assert [recorded for _, _, recorded in first] == [False, False, True, True, False, False]
    return file, folder / "out"


@pytest.fixture
def filled(once: Filled, tmp_path: Path) -> Filled:
    """The same, to be changed."""
    return once[0], Path(shutil.copytree(once[1], tmp_path / "out"))


def journal(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]


def fill(file: table.TableFile, folder: Path) -> list[tuple[str, int, bool]]:
    heard: list[tuple[str, int, bool]] = []
    quiet = Console(quiet=True)

    def on_cell(i: int, of: int, cell: table.CellRun, recorded: bool) -> None:
        heard.append((cell.row, cell.seed, recorded))

    cells = list(table.cells(file))
    runner.run_here(cells, folder, lambda flat, at: launch.cell(flat, at, 0, quiet), on_cell)
    return heard


def test_a_cell_is_run_once_and_shared(filled: Filled, tmp_path: Path) -> None:
    file, out = filled
    assert all(recorded for _, _, recorded in fill(file, out))
    comparison = table.collect(file, out)
    cell = comparison.cell("FedAvg", "iid")
    assert len(cell.values) == 2 and cell.expected == 75.5
    alone = play(flat(tmp_path / "alone", method="fedavg", seed=2))
    assert cell.values[1] == pytest.approx(100 * alone.summary["accuracy"]["final"])
    best = comparison.cell("FedAvg, best", "iid").values
    assert best[1] == pytest.approx(100 * alone.summary["accuracy"]["best"])
    (fedavg, fedprox) = (comparison.cell(row, "iid").values for row in ("FedAvg", "FedProx"))
    (a, b) = (y - x for x, y in zip(fedavg, fedprox, strict=True))
    half = 12.7062 * abs(a - b) / 2  # t of 1 at 0.975, s / √2 = |a − b| / 2
    apart = f"FedProx less FedAvg, seed by seed: iid: {(a + b) / 2:.2f} ± {half:.2f}."
    assert comparison.notes == (apart, "toy data")
    written = table.write(comparison, file, out, "two")
    assert [path.suffix for path in written] == [".md", ".html", ".tex", ".csv", ".json", ".png"]
    assert r"\toprule" in written[2].read_text() and ",2,75.5\n" in written[3].read_text()
    assert "(75.50)" in written[0].read_text() and "toy data" in written[0].read_text()


def test_rows_are_compared_over_the_seeds_of_both(filled: Filled) -> None:
    file, out = filled
    longer = file.row[0].model_copy(update={"seeds": [2, 3, 1]})
    file = file.model_copy(update={"row": [longer, *file.row[1:]]})
    cell = next(one for one in table.cells(file) if (one.row, one.seed) == ("FedAvg", 3))
    other = next(iter(records.read(out).values()))
    records.append(out, other.model_copy(update={"fingerprint": cell.fingerprint, "seed": 3}))
    comparison = table.collect(file, out)
    ours, theirs = (comparison.cell(row, "iid").values for row in ("FedProx", "FedAvg"))
    assert (len(ours), len(theirs)) == (2, 3)
    mean = (ours[0] - theirs[2] + ours[1] - theirs[0]) / 2
    assert comparison.notes[0].startswith(f"FedProx less FedAvg, seed by seed: iid: {mean:.2f} ± ")


def test_accuracy_stands_against_bytes_and_operations(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = filled
    empty = table.collect(file, tmp_path / "nothing")
    assert empty.cell("FedAvg", "iid").values == (), "what is not run stays empty"
    assert costs.pictures(empty, file, tmp_path / "nothing", "two") == []
    drawn: list[costs.Panels] = []
    real = costs.png
    monkeypatch.setattr(costs, "png", lambda *told: (drawn.append(told[1]), real(*told)))
    comparison, known = table.collect(file, out), records.read(out)
    paths = costs.pictures(comparison, file, out, "two")
    assert [path.name for path in paths] == ["two-bytes.png", "two-flops.png"]
    runs = [known[c.fingerprint].summary for c in table.cells(file) if c.row == "FedProx"]
    sent, spent = (one["iid"]["FedProx"] for one in drawn)
    assert drawn[0].keys() == {"iid"} and drawn[0]["iid"].keys() == set(comparison.rows)
    assert sent == pytest.approx(fmean(run["bytes"]["up"] for run in runs) / 4 / 1e6)
    assert spent == pytest.approx(fmean(run["flops"]["total"] for run in runs) / 1e9)
    seconds = file.model_copy(update={"measure": "seconds", "row": [file.row[0], file.row[2]]})
    assert costs.pictures(table.collect(seconds, out), seconds, out, "two") == [], "no accuracy"


def test_a_cell_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from server_app.strategy import MethodStrategy

    played, play_round = [], MethodStrategy.play_round

    def cut_off(strategy: MethodStrategy, t: int) -> None:
        played.append(t)
        if played.count(2) == 1 and t == 2:
            raise KeyboardInterrupt
        play_round(strategy, t)

    monkeypatch.setattr(MethodStrategy, "play_round", cut_off)
    file = made(tmp_path, {"FedAvg": ROWS["FedAvg"]}, "", seeds="[1]")
    with pytest.raises(KeyboardInterrupt):
        fill(file, tmp_path / "out")
    fill(file, tmp_path / "out")
    assert played == [1, 2, 2], "round 1 is not played again"


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        ("iid = 75.5", "iid = 75.5\nother = 1.0", "expected.FedAvg.other"),
        ('method = "fedavg"', 'methot = "fedavg"', "did you mean 'method'?"),
        ("mu = 0.5", "my = 0.5", "did you mean 'fedprox.mu'?"),
        ('name = "FedAvg, best"', 'name = "FedAvg"', "row 'FedAvg' exists twice"),
        ("seeds = [1, 2]", "seeds = []", "seeds = []"),
        ("seeds = [1, 2]", 'seeds = [1]\nbetter = "best"', 'better = "best"'),
        ("seeds = [1, 2]", "seeds = 1", "seeds = 1"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds = [1, 1] has 1 more than once"),
        ("seeds = [1, 2]", "", "key 'seeds' is missing"),
        ('against = "FedAvg"', 'against = "nobody"', "against = 'nobody' is no row"),
        ("note =", 'compare = ["nobody"]\nnote =', "the table: compare = 'nobody' is no row"),
        ("note =", "nota =", "key 'nota' is unknown; did you mean 'note'?; allowed: title, seeds"),
        ("against =", "agains =", "key 'row.2.agains' is unknown; did you mean 'against'?; all"),
        ("note =", "note ", "two.toml is not valid TOML: "),
    ],
)
def test_a_mistake_in_a_table_file_is_one_line_before_anything_runs(
    change: str, line: str, said: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "two.toml", tmp_path / "out"
    path.write_text(text(ROWS, END).replace(change, line, 1))
    assert said in refusal(commands.table, path, to=out, workers=0, show=False)
    assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ('method = "fedprox", train = { lr = -1.0 }', "train.lr = -1.0 is not allowed"),
        ('method = "nosuch:thing"', "method 'nosuch:thing': no module named 'nosuch'"),
        ('method = "fedprox", data = { name = "cifar10", dir = "/x" }', "not found in /x"),
        ('method = "fedmd", data = { public = 0.0 }', "data.public"),
        ('method = "fedprox", fleet = "nosuch"', "no architecture 'nosuch'"),
    ],
)
def test_every_row_is_checked_before_any_runs(settings: str, reason: str, tmp_path: Path) -> None:
    rows = {"FedAvg": ROWS["FedAvg"], "last": f"set = {{ {settings} }}"}
    (tmp_path / "two.toml").write_text(text(rows, ""))
    done = typed("table", tmp_path / "two.toml", "--out", tmp_path / "out", "--workers", 0)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: row 'last', column 'iid': ") and reason in done.stderr
    assert not done.stdout and not (tmp_path / "out").exists()


def test_a_target_that_is_not_reached_is_infinite_and_no_missing_run(tmp_path: Path) -> None:
    rows = {str(target): f'set = {{ "score.target" = {target} }}' for target in (0.001, 1.0)}
    head = 'unit = ""\nmeasure = "rounds_to_target.first"'
    slow = {"method": "fedavg", "train_lr": 1e-6, "score_stop": True}
    file = made(tmp_path, rows, "", seeds="[1]", head=head, **slow)
    fill(file, tmp_path)
    comparison = table.collect(file, tmp_path)
    assert comparison.cell("0.001", "iid").values == (1.0,)
    assert comparison.cell("1.0", "iid").values == (math.inf,)


def test_a_measure_can_be_a_cost_until_a_target(tmp_path: Path) -> None:
    """Rounds, bytes and operations up to the end of the round, and its end on the clock."""
    wanted = {"rounds": 4.0, "bytes": 900.0, "flops": 42.0, "clock": 7.5}
    rows = {cost: f'measure = "{cost}.to:0.6"' for cost in wanted} | {
        "end": 'measure = "clock.end"'
    }
    file = made(tmp_path, rows, "", seeds="[1]", head='unit = "s"', method="fedavg", rounds=4)
    (cell,) = {c.fingerprint: c for c in table.cells(file)}.values()
    course: list[float | None] = [0.9, 0.5, None, 0.2, 0.6]  # the census and round 2 do not count
    ends = {"clock.end": [None, 1.0, 2.0, 3.0, 7.5], "flops.server": [None, 8, 8, 8, 8]}
    curve = {"round": [0, 1, 2, 3, 4], "primary": course, "bytes.down": [100, 0, 0, 0, 400]}
    curve |= {"bytes.up": [0, 100, 100, 100, 100], "flops.clients": [None, 1, 2, 3, 4], **ends}

    def values(**curves: Any) -> list[tuple[float, ...]]:
        fields = {"settings": {}, "seed": 1, "summary": {"clock": {"end": 7.5}}}
        one = Recorded(fingerprint=cell.fingerprint, curve={**curve, **curves}, **fields)
        (tmp_path / records.NAME).write_bytes(one.line())
        comparison = table.collect(file, tmp_path)
        return [comparison.cell(row, "iid").values for row in comparison.rows]

    assert values() == [(value,) for value in (*wanted.values(), 7.5)]
    never = values(primary=[0.9, 0.5, 0.4, 0.2, 0.599])
    assert never == [(math.inf,)] * 4 + [(7.5,)]
    written = table.as_json(table.collect(file, tmp_path), file)["cells"]
    assert isinstance(written, list) and [cell["values"] for cell in written][3] == [None]
    assert values(**{"clock.end": []})[3] == (), "a run without a clock"


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        ("time.to:0.6", "there is no cost 'time'; allowed: rounds, bytes, flops, clock"),
        ("clock.to:inf", "the target should be a number"),
        ("clock.to:high", "the target should be a number"),
        ("clock.at:0", "the cost should be above 0"),
        ("clock.at:soon", "the cost should be above 0"),
    ],
)
def test_a_cost_until_no_target_is_refused(measure: str, reason: str, tmp_path: Path) -> None:
    file = made(tmp_path, {"A": f'measure = "{measure}"'}, "", method="fedavg")
    line = f"row 'A', column 'iid': measure = '{measure}': {reason}"
    with pytest.raises(ValueError, match=re.escape(line)):
        list(table.cells(file))


def of_tokens(**fields: Any) -> Recorded:
    """A record of a run whose primary score is in bits per byte."""
    primary = {"final": 4.0, "measure": "bits_per_byte"}
    curve = {"round": [0, 1, 2], "primary": [8.0, 5.0, 4.0], "clock.end": [None, 1.0, 2.0]}
    known = {"fingerprint": "a", "settings": {}, "seed": 1, "summary": {"primary": primary}}
    return Recorded(**{**known, "curve": curve, **fields})


def test_a_cost_until_a_target_has_the_range_and_direction_of_the_score(tmp_path: Path) -> None:
    one = of_tokens()
    assert one.measured("clock.to:5.5") == 1.0 and one.measured("rounds.to:4") == 2
    assert one.measured("clock.to:3.9") == math.inf
    line = "the target of 'clock.to:-1' = -1 is not allowed with bits per byte; allowed: 0 to inf"
    with pytest.raises(ValueError, match=re.escape(line)):
        one.measured("clock.to:-1")
    accuracy = {"primary": {"final": 0.6}}
    with pytest.raises(ValueError, match="'clock.to:60' = 60 is not allowed with accuracy"):
        of_tokens(summary=accuracy).measured("clock.to:60")
    r2 = {"primary": {"final": -0.5, "measure": "r2"}}
    course = {"round": [0, 1], "primary": [-3.0, -0.5]}
    assert of_tokens(summary=r2, curve=course).measured("rounds.to:-1") == 1


def test_a_score_at_a_cost_is_marked_and_scaled_as_the_score(tmp_path: Path) -> None:
    rows = {"A": "", "B": "set = { rounds = 7 }"}
    file = made(tmp_path, rows, 'measure = "clock.at:1.5"', seeds="[1]")
    for cell, score in zip(table.cells(file), (5.0, 6.0), strict=True):
        curve = {"round": [0, 1], "primary": [8.0, score], "clock.end": [None, 1.0]}
        records.append(tmp_path, of_tokens(fingerprint=cell.fingerprint, curve=curve))
    filled = table.collect(file, tmp_path)
    assert filled.cell("A", "iid").values == (5.0,) and filled.unit == ""
    assert filled.best("iid") == {"A"}


def test_a_record_has_the_end_of_each_round_on_the_clock_and_no_clients(tmp_path: Path) -> None:
    one = Recorded.of(flat(tmp_path, method="fedavg"), clocked(tmp_path / "run"))
    assert one is not None and one.curve["clock.end"] == [None, 10.0, 20.0, 30.0]
    assert [name for name in one.curve if "clock" in name] == ["clock.end", "clock.energy"]
    assert one.measured("clock.at:20") == one.course("primary")[1][1] == 0.6
    assert one.measured("clock.at:0.5") == one.curve["primary"][0], "that of the census"
    assert one.measured("clock.to:0.6") == 20.0 and one.measured("bytes.to:0.6") == 3030


@pytest.mark.full
def test_rounds_to_another_rows_end_follow_from_the_recorded_curves(tmp_path: Path) -> None:
    rates = {"slow": 0.02, "still": 1e-9, "fast": 0.1}
    rows = {name: f'set = {{ "train.lr" = {rate} }}' for name, rate in rates.items()}
    head, out = 'unit = ""\nmeasure = "accuracy"', tmp_path / "out"
    counted = {"method": "fedavg", "rounds": 4, "flops": True}
    file = made(tmp_path, rows, 'reach = "slow"', seeds="[1]", head=head, **counted)
    fill(file, out)
    journals = {c.row: journal(out / "cells" / c.fingerprint) for c in table.cells(file)}
    cells = {c.row: records.read(out)[c.fingerprint] for c in table.cells(file)}
    course = [line["accuracy"] for line in journals["fast"]]
    goal = journals["slow"][-1]["accuracy"]
    first = next(t for t, accuracy in enumerate(course[1:], 1) if accuracy >= goal)
    curve = cells["fast"].curve
    assert curve["round"] == [0, 1, 2, 3, 4] and curve["accuracy"] == course
    assert curve["bytes.up"] == [line["bytes"]["up"] for line in journals["fast"]]
    assert curve["flops.clients"][1:] == [line["flops"]["clients"] for line in journals["fast"][1:]]
    assert curve["loss"][1:] == [line["loss"] for line in journals["fast"][1:]]
    shutil.rmtree(out / "cells")

    def values(**changed: Any) -> dict[str, tuple[float, ...]]:
        lines = {**cells, "fast": cells["fast"].model_copy(update=changed)}.values()
        (out / records.NAME).write_bytes(b"".join(one.line() for one in lines))
        comparison = table.collect(file, out)
        return {row: comparison.cell(row, "iid").values for row in comparison.rows}

    assert values()["fast"] == (first,) and values()["still"] == (math.inf,)
    assert values(curve={})["fast"] == (), "as older records, which had no curves, but told"
    name = f"accuracy, 1: accuracy of {cells['slow'].fingerprint}"
    assert values(curve={}, reached={name: 3})["fast"] == (3.0,)
    assert values(curve={}, reached={name: None})["fast"] == (math.inf,)


def test_a_cut_line_is_mended_and_a_damaged_one_refused(filled: Filled) -> None:
    file, out = filled
    path, known = out / records.NAME, records.read(out)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 and lines == [one.line() for one in known.values()]
    path.write_bytes(b"".join(lines)[:-9])
    assert len(records.read(out)) == 3
    assert all(recorded for _, _, recorded in fill(file, out)), "its folder has it"
    assert path.read_bytes() == b"".join(lines)
    path.write_bytes(b"".join([lines[0], lines[1][:-9], b"\n", *lines[2:]]))
    with pytest.raises(ValueError, match=r"cells\.jsonl, line 2 is damaged: "):
        records.read(out)


@pytest.mark.parametrize("journals", [True, False])
def test_an_earlier_releases_folder_is_read(filled: Filled, journals: bool) -> None:
    file, out = filled
    before = records.read(out)
    (out / records.NAME).unlink()
    for run in (out / records.RUNS).iterdir() if not journals else ():
        (run / "journal.jsonl").unlink()
    assert len(table.collect(file, out).cell("FedProx", "iid").values) == 2
    kept = {} if journals else {"curve": {}}
    assert records.read(out) == {name: one.model_copy(update=kept) for name, one in before.items()}


def test_cells_that_end_at_the_same_time_are_all_recorded(tmp_path: Path) -> None:
    long = {"fleet": "x" * 99_999}  # more than one write takes
    cells = [Recorded(fingerprint=str(i), settings=long, seed=i, summary={}) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:  # each opens the file, and holds its lock, by itself
        pairs = zip(cells, reversed(cells), strict=True)
        list(pool.map(lambda pair: records.append(tmp_path, *pair), pairs))
    found = records.read(tmp_path)
    assert [found[str(i)] for i in range(40)] == cells
    assert (tmp_path / records.NAME).read_bytes().count(b"\n") == 40


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    text = TABLE.replace("[1, 2, 3, 4, 5]", "[1, 2]")
    text = text.replace("[[column]]", f"{SWITCHED}[[column]]", 1)
    (tmp_path / "ours.toml").write_text(f'{text}reach = "A"\n[expected.B]\nC = 50.0\n')
    return tmp_path / "ours.toml"


def run_part(ours: Path, out: Path, **chosen: list[str] | list[int]) -> None:
    commands.table(ours, to=out, workers=0, show=False, **chosen)


def test_a_column_may_be_about_some_rows_alone(ours: Path) -> None:
    ours.write_text(ours.read_text().replace('reach = "A"', 'rows = ["B", "ten, twice"]'))
    file = table.read(ours)
    for rows, there in ([], {"B", TEN}), (["B", "A"], {"B"}):
        some = selected_cells(file, rows, [], [])
        assert {cell.row for cell in some if cell.column == "rounds"} == there
    with pytest.raises(ValueError, match="--row A --column rounds: there is no such cell"):
        selected_cells(file, ["A"], ["rounds"], [])
    ours.write_text(ours.read_text().replace('rows = ["B", "ten, twice"]', 'rows = ["D"]'))
    with pytest.raises(ValueError, match="'rounds': rows = 'D' is no row"):
        list(table.cells(table.read(ours)))


@pytest.mark.parametrize(
    ("rows", "columns", "seeds", "met"),
    [
        ([], [], [], {*product("AB", (1, 2)), *product([TEN], (1, 2, 7))}),
        (["B"], [], [], {("B", 1), ("B", 2)}),
        ([TEN, "A"], ["C"], [2, 7], {("A", 2), (TEN, 2), (TEN, 7)}),
        ([], ["rounds"], [7], {(TEN, 7)}),
    ],
)
def test_the_cells_of_a_part_are_cells_of_the_table(
    ours: Path, rows: list[str], columns: list[str], seeds: list[int], met: set[tuple[str, int]]
) -> None:
    file = table.read(ours)
    some, every = selected_cells(file, rows, columns, seeds), list(table.cells(file))
    assert {(cell.row, cell.seed) for cell in some} == met
    assert {cell.column for cell in some} == set(columns or ["C", "rounds"])
    assert all(cell in every for cell in some)
    assert options(["a b"], [], [1, 2]) == ["--row", "a b", "--seed", "1", "--seed", "2"]


@pytest.mark.full
def test_parts_fill_one_table_and_what_clients_learnt_waits_for_the_last(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = table.read(ours), tmp_path / "out"
    run_part(ours, out, row=["B"], seed=[1, 2])
    assert len(table.collect(file, out).cell("B", "C").values) == 2
    assert table.collect(file, out).cell("A", "C").values == ()
    (out / "learnt").mkdir()
    run_part(ours, out, seed=[1, 2])
    assert (out / "learnt").exists()
    capsys.readouterr()
    run_part(ours, out, row=[TEN], column=["C"])
    said = capsys.readouterr().out
    assert f"cell 3/3 {TEN} × C, seed 7\n" in said and f"{TEN} × C, seed 2: recorded" in said
    assert not (out / "learnt").exists()
    assert records.read(out).keys() == {cell.fingerprint for cell in table.cells(file)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--row", "Z"], f"--row Z is not in this table; it has: A, B, '{TEN}'"),
        (["--column", "c"], "--column c is not in this table; it has: C, rounds"),
        (["--seed", "3"], "--seed 3 is not in this table; it has: 1, 2, 7"),
        (["--row", "A", "--seed", "7"], "--row A --seed 7: there is no such cell"),
        (["--row", "A", "--show"], "--row selects cells to run, and --show runs none: give one"),
    ],
)
def test_what_the_table_does_not_have_is_one_line(
    words: list[str], said: str, ours: Path, tmp_path: Path
) -> None:
    error = error_of("table", ours, "--out", tmp_path / "out", *words)
    assert said in error and not (tmp_path / "out").exists()


def test_a_folder_with_a_digest_may_be_anywhere() -> None:
    here = {**defaults("fedavg"), "data.name": "folder", "data.dir": "a", "data.digest": "d"}
    there, other = {**here, "data.dir": "b"}, {**here, "data.digest": "e"}
    assert records.fingerprint(here) == records.fingerprint(there) != records.fingerprint(other)
    bare = [{**one, "data.digest": ""} for one in (here, there)]
    assert records.fingerprint(bare[0]) != records.fingerprint(bare[1])
