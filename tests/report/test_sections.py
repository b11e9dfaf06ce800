"""Sections of reports about clients and classes: fairness, quantiles, metrics by class."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from common.journal import ClientScore, Entry, Failure, Member
from common.metrics import MANY, fairness, over_mixtures, quantiles, thinned
from common.parse import defaults, parse
from deploy.report import read, sections
from deploy.report.pages import write_report
from deploy.run.progress import FEW, Progress, show_summary
from deploy.study import paper_table as table
from server_app.storage import summary
from server_app.storage.journal import Journal
from tests.support.recorded_calls import record_calls
from tests.support.run_folder import census, entry, write_run
from tests.support.tiny import Run, flat

COUNT = 1000


@pytest.mark.parametrize(
    ("accuracies", "amp", "fm", "wlp"),
    [  # FedKF, Table II
        ((0.6, 0.7, 0.8), 0.7, 0.00667, 0.6),
        ((0.65, 0.65, 0.8), 0.7, 0.005, 0.65),
        ((0.7, 0.8, 0.9), 0.8, 0.00667, 0.7),
    ],
)
def test_the_papers_numerical_example(
    accuracies: tuple[float, ...], amp: float, fm: float, wlp: float
) -> None:
    told = fairness(accuracies, [10, 10, 10])
    assert told["amp"] == pytest.approx(amp) and told["wlp"] == wlp
    assert told["fm"] == pytest.approx(fm, abs=5e-6)
    weighed = fairness([0.0, 1.0], [1, 3])
    assert weighed == {"amp": 0.75, "fm": 0.25, "wlp": 0.0}, "fm is of clients, not of samples"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_no_domain_is_worse_than_the_worst_client(accuracies: list[float], seed: int) -> None:
    drawn = over_mixtures(accuracies, 20, np.random.default_rng(seed))
    assert len(drawn) == 20 and min(drawn) >= min(accuracies) - 1e-12
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(accuracies)), size=20)
    assert drawn == pytest.approx(shares @ np.array(accuracies))


def test_every_run_tells_its_fairness_for_each_model(played: Run) -> None:
    both = played(method="fedorion", rounds=1).summary["fairness"]
    assert both.keys() == {"amp", "fm", "wlp", "global", "own"}
    result = played(method="fedavg", rounds=1)
    told, scores = result.summary["fairness"], result.journal[1]["scores"]
    values = [score["accuracy_global"] for score in scores]
    assert told == {**told["global"], "global": told["global"]}
    assert told["wlp"] == min(values)
    assert told["amp"] == pytest.approx(np.average(values, weights=[s["n"] for s in scores]))


def test_the_report_shows_every_model_and_its_floor(run: Run, tmp_path: Path) -> None:
    result = run(method="fedavg", oca__aggregate="on", per_round=2)
    write_report([result.folder], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Fairness" in page and "random mixtures of clients" in page
    for model in ("oca", "aca"):
        wlp = result.summary["fairness"][model]["wlp"]
        assert f"{model} {wlp * 100:.1f}" in page


def spec(**changes: Any) -> table.TableFile:
    base = {k: v for k, v in flat(Path("unused")).items() if k not in ("out", "state-dir")}
    rows = [
        {"name": "A", "set": {"method": "fedavg", "oca.aggregate": "on"}, "model": "aca"},
        {"name": "O", "set": {"method": "fedavg", "oca.aggregate": "on"}, "model": "oca"},
        {"name": "P", "set": {"method": "fedprox"}, "seeds": [1]},
    ]
    columns = [
        {"name": "AMP"},
        {"name": "FM", "measure": "fairness.{model}.fm", "scale": 1000.0, "better": "lower"},
        {"name": "rounds", "reach": "A", "scale": 1.0, "better": "lower"},
        {"name": "mean", "reach": "A", "window": 2, "scale": 1.0, "better": "lower"},
    ]
    whole = {"title": "t", "seeds": [1, 2], "measure": "fairness.{model}.amp"}
    whole |= {"base": base, "row": rows, "column": columns}
    return table.TableFile.model_validate({**whole, **changes})


def recorded(folder: Path, cell: table.CellRun, course: dict[str, list[float]]) -> None:
    """Write what a run of ``cell`` leaves, with these AMPs by model and round."""
    place = folder / "cells" / cell.fingerprint
    place.mkdir(parents=True, exist_ok=True)
    told = [
        {name: {"amp": amps[t], "fm": 0.004, "wlp": 0.0} for name, amps in course.items()}
        for t in range(len(next(iter(course.values()))))
    ]
    fairness = [{"main": next(iter(models.values())), "models": models} for models in told]
    entries = [Entry.model_validate({"round": t, "fairness": f}) for t, f in enumerate(fairness, 1)]
    (place / "journal.jsonl").write_text("\n".join(entry.line() for entry in entries))
    summary = {"status": "completed", "fairness": told[-1]}
    (place / "summary.json").write_text(json.dumps(summary))


def test_a_table_tells_models_apart_scales_and_counts_rounds(tmp_path: Path) -> None:
    file = spec()
    prints = {(c.row, c.column, c.seed): c.fingerprint for c in table.cells(file)}
    assert prints["A", "AMP", 1] == prints["O", "FM", 1] != prints["P", "AMP", 1]
    with pytest.raises(ValueError, match=r"reach = 'B' is no row"):
        list(table.cells(spec(column=[{"name": "rounds", "reach": "B"}])))
    for cell in table.cells(file):
        if cell.row == "P":
            recorded(tmp_path, cell, {"global": [0.1, 0.2, 0.3, 0.4]})
        else:
            recorded(tmp_path, cell, {"aca": [0.2, 0.1, 0.5, 0.5], "oca": [0.3, 0.6, 0.7, 0.8]})
    filled = table.collect(file, tmp_path)
    assert filled.cell("A", "AMP").values == (50.0, 50.0)
    assert filled.cell("O", "AMP").values == (80.0, 80.0)
    assert filled.cell("P", "AMP").values == (40.0,)  # its own seeds
    assert filled.cell("A", "FM").values == (4.0, 4.0)
    assert filled.cell("A", "rounds").values == (3.0, 3.0)  # A ends at .5, first seen in round 3
    assert filled.cell("O", "rounds").values == (2.0, 2.0)
    assert filled.cell("P", "rounds").values == (float("inf"),)  # never
    assert filled.best("AMP") == {"O"} and filled.best("rounds") == {"O"}
    assert filled.cell("A", "mean").values == (4.0, 4.0)  # rounds 3 and 4
    assert filled.cell("O", "mean").values == (3.0, 3.0)  # (.6 + .7) / 2; (.3 + .6) / 2 is not .5
    (path,) = (p for p in table.write(filled, file, tmp_path, "t") if p.suffix == ".json")
    written = {(c["row"], c["column"]): c["values"] for c in json.loads(path.read_text())["cells"]}
    assert written["P", "rounds"] == [None] and "Infinity" not in path.read_text()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd")
    journal = Journal(folder)
    fields = {"model": "mlp", "n_test": 4, "classes": [0, 1]}
    members = [Member(k=k, n=k + 2, counts=[k, 2], **fields) for k in range(COUNT)]
    shares = [k / COUNT for k in range(COUNT)]
    scores = [ClientScore(k=k, n=4, accuracy=a, accuracy_global=a) for k, a in enumerate(shares)]
    lost = [Failure(k=k, round=1, reason="no reply") for k in range(MANY + 5)]
    journal.append(Entry(round=0, clients=members, classes=["a", "b"]))
    journal.append(Entry(round=1, accuracy=0.5, scores=scores, failures=lost))
    config = parse({**defaults(), "out": str(folder), "rounds": 1, "clients": COUNT})
    summary.write(folder, config, journal.entries(), None)
    return folder


def test_quantiles_and_counts_stand_for_very_many_clients(crowd: Path) -> None:
    told = quantiles([None, *range(11)])
    assert told == {"least": 0, "10 %": 1, "median": 5, "90 %": 9, "most": 10}
    assert quantiles([None]) is None
    assert thinned(range(MANY)) == range(MANY)
    few = thinned(range(COUNT))
    assert (len(few), few[0], few[-1]) == (MANY, 0, COUNT - 1)
    text = (crowd / "summary.json").read_text()
    told = json.loads(text)
    of = told["clients_in_all"]
    assert told["clients"] == [] and len(text) < 40_000
    assert (of["count"], of["scored"], of["models"]) == (COUNT, COUNT, {"mlp": COUNT})
    assert of["n"] == {"least": 2, "10 %": 101, "median": 501, "90 %": 901, "most": 1001}
    assert of["accuracy"]["median"] == 0.499
    assert (len(told["failures"]), told["further_failures"]) == (MANY, 5)
    write_report([crowd], crowd / "report.html")
    page = (crowd / "report.html").read_text()
    assert len(page) < 1_500_000
    assert "clients with at most this accuracy" in page and "of 1,000 clients" in page
    assert f"Shown are {MANY} of them." in page
    assert "5 more are in the journal." in page


def test_the_console_tells_a_few_lines(crowd: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    run = read.read(crowd)
    with Progress(1, console) as progress:
        for entry in run.entries:
            progress.on_round(entry)
    show_summary(run, console)
    text = console.export_text()
    assert f"round 1: {MANY + 5 - FEW} more failed; the journal has the reasons" in text
    assert f"and {MANY + 5 - FEW} more, in the journal" in text
    assert "of 1,000 clients" in text and "49.9 %" in text
    assert len(text.splitlines()) < 3 * FEW


def test_a_run_is_read_once(crowd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(crowd, tmp_path / "run"))
    asked = record_calls(monkeypatch, read, "_entries")
    run = read.read(folder)
    assert read.read(folder) is run and len(asked) == 1
    Journal(folder).append(Entry(round=2, accuracy=0.75))
    assert read.read(folder).done == 2 and len(asked) == 2
    (folder / "summary.json").unlink()
    assert read.read(folder).summary is None and len(asked) == 3


BY_CLASS = {"accuracy": [0.75, 0.5], "balanced_accuracy": 0.625, "macro_f1": 0.61}
PERSONAL = {"accuracy": 0.6, "unweighted": 0.5, "std": 0.1, "worst": 0.4, "worst_tenth": 0.4}
BEST = 'class="n best"'  #: cell of the best number
COUNTS = [[0, 0, 3], [0, 1, 1], [1, 0, 1], [1, 1, 1]]


def written(where: Path, confusion: Any, **more: Any) -> Path:
    """A run of one round with metrics by class, and its confusion.json."""
    folder = write_run(where, [census(), entry(1, 0.6, by_class=BY_CLASS, **more)], rounds=1)
    if confusion is not None:
        (folder / "confusion.json").write_text(json.dumps(confusion))
    return folder


def test_the_confusion_matrix_has_a_square_for_each_pair_and_its_numbers(tmp_path: Path) -> None:
    run = read.read(written(tmp_path / "run", {"round": 1, "score": "global", "counts": COUNTS}))
    section = sections.classes(run)
    assert section is not None and "macro F1 61.00 %, balanced accuracy 62.50 %" in section.lead
    matrix, by_class = section.cards
    assert by_class.table is not None and matrix.figure is not None
    assert by_class.table.rows == [("zero", "4", "75.0 %"), ("one", "2", "50.0 %")]
    (axes,) = matrix.figure.axes
    assert [text.get_text() for text in axes.texts] == ["75", "25", "50", "50"]
    page = tmp_path / "report.html"
    write_report([run.path], page)
    assert "zero as one: 1, 25.0 %" in page.read_text()


def test_a_confusion_of_another_round_or_of_other_classes_is_not_shown(tmp_path: Path) -> None:
    contents: list[Any] = [None, {"round": 2, "counts": COUNTS}]
    contents += [{"round": 1, "counts": counts} for counts in ([[0, 2, 1]], [[0, -1, 1]])]
    for i, content in enumerate(contents):
        run = read.read(written(tmp_path / f"run{i}", content))
        section = sections.classes(run)
        assert section is not None
        assert [card.title for card in section.cards] == ["Accuracy by class"]
        noted = any("confusion.json is no confusion" in note for note in run.notes)
        assert noted == (i == 3)


def test_many_classes_have_a_table_and_no_matrix(tmp_path: Path) -> None:
    names = tuple(f"class {c}" for c in range(sections.MOST_CLASSES + 1))
    metrics = {**BY_CLASS, "accuracy": [0.5] * len(names)}
    entries = [census(classes=names), entry(1, 0.5, by_class=metrics)]
    folder = write_run(tmp_path / "run", entries, rounds=1)
    content = {"round": 1, "counts": [[c, c, 2] for c in range(len(names))]}
    (folder / "confusion.json").write_text(json.dumps(content))
    section = sections.classes(read.read(folder))
    assert section is not None and [card.figure for card in section.cards] == [None]


def test_a_personal_score_is_the_pages_accuracy(tmp_path: Path) -> None:
    personal = {"primary": "personal", "personal": {**PERSONAL, "clients": 2}}
    folder = written(tmp_path / "run", None, **personal)
    run = read.read(folder)
    assert run.primary == "personal" and run.headline()["final"] == 0.6
    learning = sections.learning(run)
    assert learning is not None and learning.lead.startswith("The clients' models on their own")


def test_the_best_of_accuracies_that_do_not_compare_is_not_marked(tmp_path: Path) -> None:
    personal = {"primary": "personal", "personal": {**PERSONAL, "clients": 2}}
    mixed = [
        write_run(tmp_path / "a", [census(), entry(1, 0.5)], rounds=1),
        write_run(tmp_path / "b", [census(), entry(1, None, **personal)], rounds=1, method="local"),
        write_run(tmp_path / "c", [census(), entry(1, 0.4)], rounds=1, method="fedavg"),
    ]
    page = tmp_path / "report.html"
    write_report(mixed, page)
    text = page.read_text()
    assert BEST not in text and "personal" in text
    assert "The clients&#39; models on their own test samples: local." in text
    write_report([mixed[0], mixed[2]], page)
    assert BEST in page.read_text()
