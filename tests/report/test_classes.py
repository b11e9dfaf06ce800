"""Metrics by class in reports, and comparisons of runs whose primary scores differ."""

import json
from pathlib import Path
from typing import Any

from deploy.report import sections
from deploy.report.pages import write_report
from deploy.report.read import read
from tests.support.run_folder import census, entry, write_run

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
    run = read(written(tmp_path / "run", {"round": 1, "score": "global", "counts": COUNTS}))
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
        run = read(written(tmp_path / f"run{i}", content))
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
    section = sections.classes(read(folder))
    assert section is not None and [card.figure for card in section.cards] == [None]


def test_a_personal_score_is_the_pages_accuracy(tmp_path: Path) -> None:
    personal = {"primary": "personal", "personal": {**PERSONAL, "clients": 2}}
    folder = written(tmp_path / "run", None, **personal)
    run = read(folder)
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
