"""Scores of labels and numbers by their own measure, in everything that shows a run."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import roc_auc_score
from torch.testing import assert_close

from common.data import DATASETS, Source
from common.journal import ByClass, Entry
from common.models.card import Card
from deploy import api
from deploy.report import plots, sections, status
from deploy.report.groups import grouped
from deploy.report.pages import one, several, write_report
from deploy.report.read import Run, over_classes, read
from deploy.run.progress import Progress, show_summary
from deploy.study import paper_table, records
from deploy.study.records import Recorded
from server_app.tracking.numbers import scalars as tracked
from tests.support import outputs
from tests.support.run_folder import entry, write_run
from tests.support.tiny import flat, play

COURSES = {"r2": (0.1, 0.4, 0.3), "rmse": (60.0, 50.25, 55.0), "macro_auc": (0.7, 0.9, 0.8)}


def scored(names: list[str], t: int, **more: Any) -> Entry:
    """Return an entry whose scores are those of ``COURSES``, the first one primary."""
    values = {name: COURSES[name][t] for name in names}
    score = {"k": 0, "n": 4, "accuracy": None, "accuracy_global": None}
    clients = [{**score, "k": k, "measures": values, "measures_global": values} for k in (0, 1)]
    fields = {"measures": values, "by_output": {n: [v] for n, v in values.items()}}
    more = {"round": t, "scores": clients if t else [], **more}
    return entry(1, None, **{**fields, **more})


def course(names: list[str], **more: Any) -> list[Entry]:
    clients = [{"k": k, "model": "cnn2", "n": 7} for k in (0, 1)]
    first = scored(names, 0).model_dump(exclude_unset=True)
    census = Entry.model_validate({**first, "clients": clients, "classes": ["bp"], "selected": []})
    return [census, *(scored(names, t, **more) for t in (1, 2))]


def run_of(folder: Path, *names: str, **more: Any) -> Run:
    return read(write_run(folder, course([*names], **more), summary={"status": "completed"}))


@pytest.mark.parametrize(
    ("names", "best", "shown"),
    [(["r2", "rmse"], 0.4, "R² 0.300, best 0.400"), (["rmse"], 50.25, "RMSE 55.00, best 50.25")],
)
def test_the_best_round_is_that_of_the_measures_direction(
    names: list[str], best: float, shown: str, tmp_path: Path
) -> None:
    file = io.StringIO()
    with Progress(2, Console(file=file, width=100)) as progress:
        for one_entry in course(names):
            progress.on_round(one_entry)
    assert shown in file.getvalue().splitlines()[-1] and "%" not in file.getvalue()
    run = run_of(tmp_path / "a", *names)
    assert run.best() == (1, best) and run.headline()["best"] == best
    known = status.of(run)
    assert shown in status.line(known) and known.accuracy is None and known.best == best
    assert api.load(tmp_path / "a").accuracy is None
    assert api.load(tmp_path / "a").score == COURSES[names[0]][2]


def test_a_page_has_every_measure_by_its_title_range_and_direction(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", "r2", "rmse")
    page = one(run)
    assert [tile[:2] for tile in page.tiles[:2]] == [("Final R²", "0.300"), ("Best R²", "0.400")]
    learning, clients = (s for s in page.sections[:2] if s is not None)
    assert [card.title for card in learning.cards] == ["R²", "RMSE", "Loss"]
    assert "R²: at most 1, higher is better. RMSE: at least 0, lower is better." in learning.lead
    behind = learning.cards[0].behind
    assert behind is not None and [*behind.header[:3]] == ["round", "R²", "RMSE"]
    assert [str(cell) for cell in behind.rows[1][:3]] == ["1", "0.4000", "50.250"]
    assert clients.cards[0].behind is not None
    assert clients.cards[0].behind.records()[0]["global model, R²"] == "0.300"
    console = Console(record=True, width=200)
    show_summary(run, console)
    text = console.export_text()
    assert "final 0.300, best 0.400" in text and "at most 1, higher is better" in text
    assert "%" not in text and "accuracy" not in text


def test_bars_of_negative_scores_are_in_the_axis(tmp_path: Path) -> None:
    bad = {"k": 0, "n": 4, "accuracy": None, "accuracy_global": None}
    bad |= {"measures": {"r2": -2.0}, "measures_global": {"r2": -2.0}}
    run = run_of(tmp_path / "a", "r2", scores=[bad])
    low, high = plots.clients(run).axes[0].get_ylim()
    assert low < -2.0 and high == 1.0
    assert "mixtures" not in str([card.title for card in sections.clients(run).cards])  # type: ignore[union-attr]


def test_runs_with_different_measures_do_not_compare(tmp_path: Path) -> None:
    folders = []
    for name, measures in {"a": ["r2"], "b": ["macro_auc"], "c": ["r2"]}.items():
        run_of(tmp_path / name, *measures)
        folders.append(tmp_path / name)
    with pytest.raises(ValueError, match=r"^runs with different measures .* R² of .*/a; macro AUC"):
        write_report(folders[:2], tmp_path / "page.html")
    alike = [read(folders[0]), read(folders[2])]
    (results, *_) = several(alike).sections
    assert results is not None and results.cards[0].table is not None
    assert results.cards[0].table.records()[0]["final"] == "0.3000"
    axes = plots.score(grouped(alike)).axes[0]
    assert axes.get_ylabel() == "R²" and axes.yaxis.get_major_formatter()(0.5) != "50%"


def test_prometheus_has_a_metric_for_each_measure(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'fedmosaic[metrics]'")
    from deploy.report.metrics import Metrics

    run_of(tmp_path / "a", "r2", "rmse")
    text = Metrics(tmp_path / "a").route.body().decode()
    for line in ('r2{score="global"} 0.3', "best_r2 0.4", 'rmse{score="global"} 55.0'):
        assert f"fedmosaic_{line}\n" in text
    assert "accuracy" not in text


def test_the_page_says_what_the_scores_of_all_samples_together_are(tmp_path: Path) -> None:
    personal = {"measures": {"r2": 0.85}, "clients": 2, "unweighted": 0.6, "std": 0.0}
    personal |= {"worst": 0.6, "worst_tenth": 0.6}
    leads = []
    for pooled in (True, False):
        more = {"personal": {**personal, "pooled": pooled}}
        section = sections.clients(run_of(tmp_path / str(pooled), "r2", **more))
        assert section is not None
        leads.append(section.lead)
    assert leads[0] == f"{leads[1]} Test samples of all clients together: 0.850."


def test_the_labels_with_the_lowest_scores_have_curves_also_beside_unknown_ones(
    tmp_path: Path,
) -> None:
    areas = [0.9, None, 0.2, None, *[0.8] * 5, 0.1, *[0.7] * 4]
    names = [f"label{i}" for i in range(len(areas))]
    census, *others = course(["macro_auc"], by_output={"auc": areas})
    census.classes = names
    write_run(tmp_path / "a", [census, *others])
    true = [[float((i + j) % 2) for j in range(len(areas))] for i in range(20)]
    content = {"round": 2, "predicted": true, "true": true}
    (tmp_path / "a" / "predictions.json").write_text(json.dumps(content))
    section = sections.outputs(read(tmp_path / "a"))
    assert section is not None
    (figure,) = (card.figure for card in section.cards if card.title == "ROC")
    assert figure is not None
    (legend,) = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    shown = {text.get_text() for text in legend.get_texts()}
    lowest = sorted((a, n) for a, n in zip(areas, names, strict=True) if a is not None)[:10]
    assert shown == {name for _, name in lowest}


def test_curves_of_labels_are_those_of_the_predictions(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    true = draw.integers(0, 2, (300, 1)).astype(float)
    shares = (0.3 * true + 0.7 * draw.uniform(size=(300, 1))).tolist()
    write_run(tmp_path / "a", course(["macro_auc"]))
    content = {"round": 2, "predicted": shares, "true": true.tolist()}
    (tmp_path / "a" / "predictions.json").write_text(json.dumps(content))
    section = sections.outputs(read(tmp_path / "a"))
    assert section is not None and section.title == "Labels"
    curves = {card.title: card.figure for card in section.cards}
    assert {"ROC", "Precision and recall"} <= curves.keys()
    figure = curves["ROC"]
    assert figure is not None
    x, y = figure.axes[0].lines[0].get_data()
    assert np.trapezoid(np.asarray(y), np.asarray(x)) == pytest.approx(
        roc_auc_score(true, shares), abs=0.01
    )
    for change in ({"round": 1}, {"true": [[0.0, 1.0]]}, {"true": []}, {"true": [[0.5]] * 300}):
        (tmp_path / "a" / "predictions.json").write_text(json.dumps({**content, **change}))
        section = sections.outputs(read(tmp_path / "a"))
        assert section is not None, change
        assert [card.title for card in section.cards] == ["Scores by label"], change


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two targets."""
    return learnt(tmp_path_factory.mktemp("number"), "number")


def learnt(folder: Path, objective: str, **more: Any) -> Path:
    dataset = getattr(outputs, objective)()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, f"made-{objective}", Source(lambda _: dataset, "made"))
        data = {"data__name": f"made-{objective}", "data__samples": 0, "data__test_samples": 0}
        play(flat(folder, method="fedavg", train__lr=0.03, rounds=2, **data, **more))
    return folder


def test_numbers_are_predicted_in_the_unit_of_the_data(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = outputs.number()
    monkeypatch.setitem(DATASETS, "made-number", Source(lambda _: dataset, "made"))
    run = api.load(numbers)
    predicted = run.predict(dataset.x_test)
    assert isinstance(predicted, torch.Tensor) and predicted.shape == (80, 2)
    errors = (predicted - dataset.y_test).square().mean(0).sqrt()
    assert errors.tolist() == pytest.approx(run.entries[-1].by_output["rmse"], rel=1e-4)
    with pytest.raises(ValueError, match=r"^probabilities are of classes and labels"):
        run.predict(dataset.x_test, probabilities=True)
    card = json.loads((numbers / "model.json").read_text())
    assert card["objective"] == "number" and card["classes"] == ["size", "balance"]
    standardised = run.model()(torch.zeros(1, *dataset.shape))
    scaled = standardised * torch.tensor(card["target_std"]) + torch.tensor(card["target_mean"])
    assert_close(Card(**card).goal.predicted(standardised), scaled)
    old = {name: value for name, value in card.items() if not name.startswith(("obj", "target"))}
    assert Card(**old).goal.name == "classes"


def test_points_of_numbers_are_the_final_models(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = outputs.number()
    monkeypatch.setitem(DATASETS, "made-number", Source(lambda _: dataset, "made"))
    content = json.loads((numbers / "predictions.json").read_text())
    predicted = api.load(numbers).predict(dataset.x_test)
    assert isinstance(predicted, torch.Tensor)
    drawn = np.array(content["true"])
    place = [int(np.abs(dataset.y_test.numpy() - row).sum(1).argmin()) for row in drawn]
    assert sorted(place) == [*range(80)], "few samples are all there"
    assert content["predicted"] == pytest.approx(predicted[place].numpy(), rel=1e-3, abs=1e-3)
    section = sections.outputs(read(numbers))
    assert section is not None and section.title == "Targets"
    *_, picture, _, residuals = section.cards
    assert picture.figure is not None and residuals.table is not None
    x, y = picture.figure.axes[0].lines[0].get_data()
    assert np.asarray(x) == pytest.approx(drawn[:, 0])
    mean = float(residuals.table.records()[0]["mean"])
    assert mean == pytest.approx(float(np.mean(np.asarray(y) - np.asarray(x))), rel=1e-3)


def test_labels_are_probabilities_and_privacy_has_no_predictions(tmp_path: Path) -> None:
    private = {"privacy__mode": "central", "privacy__clip": 0.1, "share_counts": False}
    folder = learnt(tmp_path / "a", "labels", **private, score__primary="global")
    assert not (folder / "predictions.json").exists() and read(folder).measure.name == "macro_auc"
    folder = learnt(tmp_path / "b", "labels")
    with pytest.MonkeyPatch.context() as patch:
        dataset = outputs.labels()
        patch.setitem(DATASETS, "made-labels", Source(lambda _: dataset, "made"))
        shares = api.load(folder).predict(dataset.x_test)
    assert isinstance(shares, torch.Tensor) and shares.shape == (80, 3)
    assert float(shares.min()) >= 0 and float(shares.max()) <= 1
    true = dataset.y_test.numpy()
    known = read(folder).entries[-1].by_output["auc"]
    assert [roc_auc_score(true[:, i], shares[:, i]) for i in range(3)] == pytest.approx(known)


def test_a_record_reaches_a_target_in_the_measures_direction(tmp_path: Path) -> None:
    curve: dict[str, Any] = {"round": [0, 1, 2, 3], "primary": [9.0, 4.0, 3.0, 2.0]}
    curve |= {"measures.rmse": [9.0, 4.0, 3.0, 2.0]}
    summary = {"primary": {"score": "global", "measure": "rmse", "final": 2.0}}
    summary |= {"measures": {"rmse": {"final": 2.0}}}
    fields: dict[str, Any] = {"settings": {}, "seed": 1, "summary": summary, "curve": curve}
    one_record = Recorded(fingerprint="a", **fields)
    assert one_record.cost_to("rounds", 3.5) == 2 and one_record.cost_to("rounds", 1) == np.inf
    assert one_record.reaches("measures.rmse", one_record, "measures.rmse", 1) == 3
    assert one_record.measured("measures.rmse.final") == 2.0
    text = 'title = "T"\nseeds = [1]\nmeasure = "measures.rmse.final"\n[[row]]\nname = "a"\n'
    (tmp_path / "t.toml").write_text(text + '[[column]]\nname = "b"\n[base]\nmethod = "fedavg"\n')
    file = paper_table.read(tmp_path / "t.toml")
    assert file.better == "lower"
    (cell,) = paper_table.cells(file)
    records.append(tmp_path, Recorded(fingerprint=cell.fingerprint, **fields))
    table = paper_table.collect(file, tmp_path)
    assert table.cell("a", "b").values == (2.0,) and table.unit == "", "not 200 %"


def test_files_of_classes_have_no_measures(tmp_path: Path) -> None:
    """Summary, card and trackers are those of earlier releases."""
    folder = play(flat(tmp_path, method="local", rounds=1)).folder
    summary = json.loads((folder / "summary.json").read_text())
    assert not {"measures", "by_output"} & summary.keys()
    assert "pooled" not in summary["personal"] and "macro_auc" not in summary["primary"]
    assert not {"objective", "target_mean"} & json.loads((folder / "model.json").read_text()).keys()
    assert not (folder / "predictions.json").exists()
    assert "personal/pooled" not in tracked(read(folder).entries[-1])


def test_the_area_of_classes_is_beside_f1() -> None:
    known = ByClass(accuracy=[0.5, 1.0], balanced_accuracy=0.75, macro_f1=0.5, macro_auc=0.875)
    assert over_classes(known, 1) == "macro F1 50.0 %, macro AUC 87.5 %, balanced accuracy 75.0 %"
    older = known.model_copy(update={"macro_auc": None})
    assert over_classes(older, 1) == "macro F1 50.0 %, balanced accuracy 75.0 %"
