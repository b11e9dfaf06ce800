"""Runs of very many clients stay readable: quantiles and curves, not a line for each."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from common.crowd import MANY, quantiles, thinned
from common.journal import ClientScore, Entry, Failure, Member
from common.parse import defaults, parse
from deploy.report import read
from deploy.report.pages import write_report
from deploy.run.progress import FEW, Progress, show_summary
from server_app.keep import summary
from server_app.keep.journal import Journal

COUNT = 1000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd")
    journal = Journal(folder)
    members = [
        Member(k=k, model="mlp", n=k + 2, n_test=4, counts=[k, 2], classes=[0, 1])
        for k in range(COUNT)
    ]
    scores = [
        ClientScore(k=k, n=4, accuracy=k / COUNT, accuracy_global=k / COUNT) for k in range(COUNT)
    ]
    lost = [Failure(k=k, round=1, reason="no reply") for k in range(MANY + 5)]
    journal.append(Entry(round=0, clients=members, classes=["a", "b"]))
    journal.append(Entry(round=1, accuracy=0.5, scores=scores, failures=lost))
    config = parse({**defaults(), "out": str(folder), "rounds": 1, "clients": COUNT})
    summary.write(folder, config, journal.entries(), None)
    return folder


def test_quantiles_are_values_that_are_there() -> None:
    told = quantiles([None, *range(11)])
    assert told == {"least": 0, "10 %": 1, "median": 5, "90 %": 9, "most": 10}
    assert quantiles([None]) is None
    assert thinned(range(MANY)) == range(MANY)
    few = thinned(range(COUNT))
    assert (len(few), few[0], few[-1]) == (MANY, 0, COUNT - 1)


def test_the_summary_tells_quantiles_and_counts(crowd: Path) -> None:
    text = (crowd / "summary.json").read_text()
    told = json.loads(text)
    of = told["clients_in_all"]
    assert told["clients"] == [] and len(text) < 40_000
    assert (of["count"], of["scored"], of["models"]) == (COUNT, COUNT, {"mlp": COUNT})
    assert of["n"] == {"least": 2, "10 %": 101, "median": 501, "90 %": 901, "most": 1001}
    assert of["accuracy"]["median"] == 0.499
    assert (len(told["failures"]), told["further_failures"]) == (MANY, 5)


def test_the_console_tells_a_few_lines(crowd: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    run = read.read(crowd)
    with Progress(1, console) as progress:
        for entry in run.entries:
            progress.on_round(entry)
    show_summary(run, console)
    text = console.export_text()
    assert f"round 1: {MANY + 5 - FEW} more failed; the journal says why" in text
    assert f"and {MANY + 5 - FEW} more, in the journal" in text
    assert "of 1,000 clients" in text and "49.9 %" in text
    assert len(text.splitlines()) < 3 * FEW


def test_the_report_is_small_and_says_what_it_leaves_out(crowd: Path) -> None:
    write_report([crowd], crowd / "report.html")
    page = (crowd / "report.html").read_text()
    assert len(page) < 1_500_000
    assert "clients with at most this accuracy" in page and "of 1,000 clients" in page
    assert f"Shown are {MANY} of them." in page
    assert "5 more are in the journal." in page


def test_a_run_is_read_once_until_its_files_change(
    crowd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(crowd, tmp_path / "run"))
    whole, asked = read._entries, list[Path]()

    def entries(journal: Path, notes: list[str]) -> list[Entry]:
        asked.append(journal)
        return whole(journal, notes)

    monkeypatch.setattr(read, "_entries", entries)
    run = read.read(folder)
    assert read.read(folder) is run and len(asked) == 1
    Journal(folder).append(Entry(round=2, accuracy=0.75))
    assert read.read(folder).done == 2 and len(asked) == 2
    (folder / "summary.json").unlink()
    assert read.read(folder).summary is None and len(asked) == 3
