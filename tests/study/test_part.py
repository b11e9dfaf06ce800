"""``fedmosaic table --row --column --seed``: a table in parts, here now or elsewhere."""

from itertools import product
from pathlib import Path

import pytest

from common.parse import defaults
from deploy.study import commands, records
from deploy.study import paper_table as table
from deploy.study.paper_table import options, part
from tests.support.board import TABLE
from tests.support.commandline import error_of

TEN = "ten, twice"
SWITCHED = f"""
[[row]]
name = "{TEN}"
seeds = [1, 2, 7]
against = "A"
set = {{ method = "fedavg", train = {{ lr = 0.02 }} }}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    text = TABLE.replace("[1, 2, 3, 4, 5]", "[1, 2]")
    text = text.replace("[[column]]", f"{SWITCHED}[[column]]", 1)
    (tmp_path / "ours.toml").write_text(f'{text}reach = "A"\n[expected.B]\nC = 50.0\n')
    return tmp_path / "ours.toml"


def run(path: Path, out: Path, **chosen: list[str] | list[int]) -> None:
    commands.table(path, to=out, workers=0, show=False, **chosen)


def test_a_column_may_be_about_some_rows_alone(path: Path) -> None:
    path.write_text(path.read_text().replace('reach = "A"', 'rows = ["B", "ten, twice"]'))
    file = table.read(path)
    for rows, there in ([], {"B", TEN}), (["B", "A"], {"B"}):
        some = part(file, rows, [], [])
        assert {cell.row for cell in some if cell.column == "rounds"} == there
    with pytest.raises(ValueError, match="--row A --column rounds: there is no such cell"):
        part(file, ["A"], ["rounds"], [])
    path.write_text(path.read_text().replace('rows = ["B", "ten, twice"]', 'rows = ["D"]'))
    with pytest.raises(ValueError, match="'rounds': rows = 'D' is no row"):
        list(table.cells(table.read(path)))


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
    path: Path, rows: list[str], columns: list[str], seeds: list[int], met: set[tuple[str, int]]
) -> None:
    some, every = part(table.read(path), rows, columns, seeds), list(table.cells(table.read(path)))
    assert {(cell.row, cell.seed) for cell in some} == met
    assert {cell.column for cell in some} == set(columns or ["C", "rounds"])
    assert all(cell in every for cell in some)
    assert options(["a b"], [], [1, 2]) == ["--row", "a b", "--seed", "1", "--seed", "2"]


@pytest.mark.full
def test_parts_fill_one_table_and_what_clients_learnt_waits_for_the_last(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = table.read(path), tmp_path / "out"
    run(path, out, row=["B"], seed=[1, 2])
    assert len(table.collect(file, out).cell("B", "C").values) == 2
    assert table.collect(file, out).cell("A", "C").values == ()
    (out / "learnt").mkdir()
    run(path, out, seed=[1, 2])
    assert (out / "learnt").exists()
    capsys.readouterr()
    run(path, out, row=[TEN], column=["C"])
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
    words: list[str], said: str, path: Path, tmp_path: Path
) -> None:
    error = error_of("table", path, "--out", tmp_path / "out", *words)
    assert said in error and not (tmp_path / "out").exists()


def test_a_folder_with_a_digest_may_be_anywhere() -> None:
    here = {**defaults("fedavg"), "data.name": "folder", "data.dir": "a", "data.digest": "d"}
    there, other = {**here, "data.dir": "b"}, {**here, "data.digest": "e"}
    assert records.fingerprint(here) == records.fingerprint(there) != records.fingerprint(other)
    bare = [{**one, "data.digest": ""} for one in (here, there)]
    assert records.fingerprint(bare[0]) != records.fingerprint(bare[1])
