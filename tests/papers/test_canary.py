"""Canaries: short runs beside a record, by which later code is known to compute the same."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from deploy.run import launch
from deploy.study import paper_table, records
from deploy.study.paper_table import TableFile
from tests.papers import __main__ as commands
from tests.papers import canary
from tests.papers.canary import Canaries
from tests.support.board import TABLE

pytestmark = pytest.mark.docs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "ours.toml").write_text(TABLE.replace("[1, 2, 3, 4, 5]", "[1]"))
    return tmp_path / "ours.toml"


@pytest.fixture
def file(path: Path) -> TableFile:
    return paper_table.read(path)


def short(file: TableFile, rounds: int = canary.ROUNDS) -> Canaries:
    return canary.run(file, lambda *what: launch.cell(*what, 0, Console(quiet=True)), str, rounds)


def run(path: Path, folder: Path, *, canaries: bool = False, show: bool = False) -> None:
    commands.table(path, to=folder, workers=0, show=show, canaries=canaries)


def lose_a_cell(folder: Path) -> None:
    """Leave one of two cells."""
    path = folder / records.NAME
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    shutil.rmtree(folder / records.RUNS)


def test_the_first_cell_of_a_method_is_cut_short(file: TableFile) -> None:
    first, second = canary.first_cells(file)
    assert (first.flat["method"], second.flat["method"]) == ("fedavg", "fedprox")
    assert list(canary.first_cells(file, [second])) == [second]
    flat = canary.short({**first.flat, "noise.batches": 400, "data.samples": 120})
    assert (flat["rounds"], flat["train.epochs"], flat["noise.batches"]) == (2, 1, 2)
    assert canary.short({**first.flat, "rounds": 1})["rounds"] == 1
    assert flat["data.samples"] == 120 and flat["train.lr"] == first.flat["train.lr"]


def test_canaries_of_one_round_are_repeated_with_one(
    file: TableFile, path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    one, two = short(file, 1), short(file)
    assert set(one.digests.values()).isdisjoint(two.digests.values())
    canary.save([one], folder)
    (folder / "cells").mkdir()
    run(path, folder, canaries=True)
    assert canary.load(folder) == [one], "the same as it was, so nothing is added"


def test_what_a_method_begins_in_its_second_round_is_in_its_canary(tmp_path: Path) -> None:
    text = TABLE.replace("fedprox", "fedin").replace("fedavg", "fedprox").replace("mlp", "cnn2")
    base = 'data = { name = "digits", samples = 120, test-samples = 60, partition = "iid" }'
    same = 'average = { across = "layerwise", weights = "uniform" }\nfedprox = { mu = 0.1 }'
    lines = text.splitlines()
    lines = [f"{base}\n{same}" if line.startswith("data = ") else line for line in lines]
    (tmp_path / "in.toml").write_text("\n".join(lines))
    file = paper_table.read(tmp_path / "in.toml")

    counts = [len(set(short(file, rounds).digests.values())) for rounds in (1, 2)]
    assert counts == [1, 2], "IN begins when there are features"


def test_a_processor_is_named_by_its_maker_family_and_model(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    one = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n\n"
    told.write_text(one.format(17) + one.format(99))
    assert canary.processor(told) == "AuthenticAMD 25 17"
    told.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert canary.processor(told) == "0x41 0xd40"
    assert canary.processor(tmp_path / "none") and canary.processor() in canary.here()


def test_a_record_goes_on_elsewhere_but_not_with_code_that_computes_something_else(
    path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "record"
    run(path, folder)
    (mine,) = canary.load(folder)
    assert mine.where == canary.here() and mine.rounds == 2
    elsewhere = Canaries("another processor", {"fedavg": "1", "fedprox": "2"})
    canary.save([elsewhere], folder)
    run(path, folder)
    assert canary.load(folder) == [elsewhere], "nothing was left to run here"
    lose_a_cell(folder)
    run(path, folder)
    assert canary.load(folder) == [elsewhere, mine]
    fedavg = {"fedavg": mine.digests["fedavg"]}
    for before in ([elsewhere], [elsewhere, Canaries(mine.where, fedavg)]):
        canary.save(before, folder)
        run(path, folder, canaries=True)
        assert canary.load(folder) == [elsewhere, mine]
    canary.save([Canaries(mine.where, {**mine.digests, "fedprox": "0"})], folder)
    lose_a_cell(folder)
    with pytest.raises(ValueError, match=r"canaries\.json: fedprox gives other numbers now than"):
        run(path, folder)
    assert len(records.read(folder)) == 1
    (folder.parent / canary.NAME).write_text("[]")
    with pytest.raises(ValueError, match=r"canaries\.json is no record of canaries"):
        run(path, folder)


def test_a_table_that_is_not_kept_has_no_canaries(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands.table(path, to=None, workers=0, show=False, canaries=False)
    folder = tmp_path / "runs" / "ours"
    assert len(records.read(folder)) == 2 and not (folder.parent / canary.NAME).exists()


def test_canaries_alone_are_for_a_record(path: Path, tmp_path: Path) -> None:
    (tmp_path / "old" / records.RUNS).mkdir(parents=True)
    run(path, tmp_path / "old")
    assert canary.load(tmp_path / "old") == [], "a record that was begun without goes on so"
    with pytest.raises(ValueError, match=r"--canaries is for a record, but .* holds none"):
        run(path, tmp_path / "none", canaries=True)
    with pytest.raises(ValueError, match="give one of them"):
        run(path, tmp_path / "none", canaries=True, show=True)
    assert not (tmp_path / "none").exists()
