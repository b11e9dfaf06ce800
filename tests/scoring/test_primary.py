"""The score that counts for a run: of the server's model, or of the clients' models; by class."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import f1_score, recall_score

from common.exchange.protocol import ScoreReply
from common.journal import Entry
from common.metrics import confusion, over_classes, over_clients, pooled
from common.parse import parse
from deploy import api
from deploy.run.progress import Progress, show_summary
from deploy.study import paper_table as table
from deploy.study.records import Recorded
from server_app.scoring.score import score_check
from server_app.stopped import Stopped
from server_app.tracking import numbers
from tests.support.halves import client, server
from tests.support.tiny import Run, TinyRun, flat, play, under

GOOD = [[0, 0, 6], [0, 1, 1], [2, 2, 3]]
PERSONAL = {"accuracy": 0.8, "unweighted": 0.7, "std": 0.1, "worst": 0.4, "worst_tenth": 0.5}
BY_CLASS = {"accuracy": [0.9, None], "balanced_accuracy": 0.9, "macro_f1": 0.85}


def counts(run: TinyRun) -> list[tuple[int, int, int]]:
    content = json.loads((run.folder / "confusion.json").read_text())
    assert content["round"] == run.journal[-1]["round"]
    return [(y, predicted, n) for y, predicted, n in content["counts"]]


def share_right(found: list[tuple[int, int, int]]) -> float:
    return sum(n for y, z, n in found if y == z) / sum(n for *_, n in found)


def test_statistics_over_clients_by_hand() -> None:
    accuracies = [0.5, *[1.0] * 9, 0.25]  # ⌈1.1⌉ = 2 clients are the worst tenth
    told = over_clients(accuracies, [3, *[1] * 10])
    assert told["accuracy"] == pytest.approx((3 * 0.5 + 9 + 0.25) / 13)
    assert told["unweighted"] == pytest.approx((0.5 + 9 + 0.25) / 11)
    assert told["std"] == pytest.approx(np.std(accuracies))
    assert told["worst"] == 0.25 and told["worst_tenth"] == pytest.approx(0.375)
    assert over_clients([0.5], [2])["worst_tenth"] == 0.5


def test_metrics_by_class_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y = rng.choice([0, 1, 2, 4], 200)  # no sample of 3, and 5 occurs nowhere
    predicted = np.where(rng.random(200) < 0.6, y, rng.integers(0, 5, 200))
    told = over_classes(confusion(y, predicted), 6)
    assert told["macro_f1"] == pytest.approx(f1_score(y, predicted, average="macro"))
    present = np.unique(y)
    recall = recall_score(y, predicted, labels=present, average=None)
    assert told["balanced_accuracy"] == pytest.approx(recall.mean())
    accuracies: Any = told["accuracy"]
    assert [accuracies[3], accuracies[5]] == [None, None]
    assert [accuracies[c] for c in present] == pytest.approx(recall.tolist())
    single = over_classes([(1, 1, 5)], 4)
    assert single["accuracy"] == [None, 1.0, None, None] and single["macro_f1"] == 1.0


def test_the_confusion_of_two_parts_is_their_sum() -> None:
    y, predicted = np.array([0, 1, 1, 2, 0]), np.array([0, 1, 2, 2, 1])
    parts = [confusion(y[:2], predicted[:2]), confusion(y[2:], predicted[2:])]
    whole = [(0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 2, 1), (2, 2, 1)]
    assert pooled(parts) == confusion(y, predicted) == whole


def test_without_a_global_model_the_clients_scores_count_in_every_scored_round(played: Run) -> None:
    run = played(method="local", rounds=3, score__every=2)
    assert ["personal" in entry for entry in run.journal] == [False, False, True, True]
    assert {entry["primary"] for entry in run.journal} == {"personal"}
    last, summary = run.journal[-1], run.summary
    scores = last["scores"]
    mean = sum(s["n"] * s["accuracy"] for s in scores) / sum(s["n"] for s in scores)
    assert last["personal"]["accuracy"] == pytest.approx(mean) == last["fairness"]["main"]["amp"]
    assert last["personal"]["worst"] == min(s["accuracy"] for s in scores)
    assert last["personal"]["clients"] == len(scores) == 4
    assert share_right(counts(run)) == pytest.approx(mean), "over the samples of all clients"
    course = [entry["personal"]["accuracy"] for entry in run.journal[2:]]
    assert summary["primary"]["score"] == "personal" and summary["accuracy"] is None
    assert [summary["primary"][name] for name in ("final", "best")] == [course[-1], max(course)]
    assert summary["primary"]["macro_f1"] == last["by_class"]["macro_f1"]
    assert summary["primary"]["by_class"] == last["by_class"]["accuracy"]
    assert summary["personal"]["worst_tenth"] == last["personal"]["worst_tenth"]
    shown = api.load(run.folder)
    assert (shown.accuracy, shown.primary) == (course[-1], "personal")
    assert shown.journal["primary_score"].iloc[-1] == course[-1]


def test_with_a_global_model_the_servers_score_counts_and_both_stand(played: Run) -> None:
    run = played(method="fedavg")
    last, summary = run.journal[-1], run.summary
    assert "primary" not in last and summary["primary"]["score"] == "global"
    assert summary["primary"]["final"] == last["accuracy"] == share_right(counts(run))
    assert sum(n for *_, n in counts(run)) == 60, "the server's test samples"
    expected = over_classes(counts(run), 3)
    assert 0.5 < last["by_class"].pop("macro_auc") <= 1
    assert last["by_class"] == expected and run.journal[0]["by_class"] != expected
    assert summary["personal"]["final"] == last["fairness"]["main"]["amp"]
    assert "personal" not in run.journal[1]
    assert api.load(run.folder).accuracy == summary["accuracy"]["final"]


def test_the_choice_changes_what_counts_and_no_weight(played: Run) -> None:
    usual, personal = played(method="fedavg"), played(method="fedavg", score__primary="personal")
    assert usual.weights == personal.weights
    assert usual.summary["accuracy"] == personal.summary["accuracy"]
    assert all("personal" in entry for entry in personal.journal[1:])
    tested = sum(score["n"] for score in personal.journal[-1]["scores"])
    assert sum(n for *_, n in counts(personal)) == tested
    assert personal.summary["primary"]["final"] == personal.summary["personal"]["final"]


def test_a_target_is_of_the_score_that_counts(tmp_path: Path) -> None:
    settings = {"method": "local", "score__target": 0.001, "score__stop": True, "rounds": 3}
    summary = play(flat(tmp_path, **settings)).summary
    assert (summary["ended"], summary["rounds"]) == ("target", 1)
    assert summary["rounds_to_target"]["first"] == 1
    with pytest.raises(Stopped, match="the run is complete: score.target = 0.001 was reached"):
        play(flat(tmp_path, resume=True, **settings))


def test_a_run_that_personal_scores_end_has_a_global_score_of_its_last_round(run: Run) -> None:
    score = {"primary": "personal", "every": 3, "clients_every": 1, "target": 0.001, "stop": True}
    played = run(method="fedavg", rounds=4, **under("score", **score))
    last = played.journal[-1]
    assert (played.summary["ended"], last["round"]) == ("target", 1)
    assert played.summary["accuracy"]["final"] == last["accuracy"] is not None
    assert last["by_class"]["accuracy"] and last["primary"] == "personal"


def test_clients_that_hide_their_counts_send_no_confusion(run: Run) -> None:
    hidden = run(method="local", share_counts=False)
    assert hidden.summary["primary"]["final"] > 0 and "by_class" not in hidden.summary["primary"]
    assert not (hidden.folder / "confusion.json").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data__test_fraction": 0.0}, "data.test-fraction = 0: clients have no test samples"),
        ({"privacy__mode": "central", "privacy__clip": 1.0}, "clients' scores have no noise"),
    ],
)
def test_personal_scores_that_cannot_be_are_refused(changes: dict[str, Any], line: str) -> None:
    start, end = '^score.primary = "personal" is not allowed.*', '; allowed: "auto", "global"$'
    with pytest.raises(ValueError, match=start + line + end):
        parse(flat(Path("nowhere"), method="fedavg", score__primary="personal", **changes))


def test_validation_samples_are_enough_for_personal_scores() -> None:
    given = under("data", test_fraction=0.0, validation=0.2, score_on="validation")
    parsed = parse(flat(Path("nowhere"), method="fedavg", score__primary="personal", **given))
    assert parsed.score.primary == "personal"


def test_the_score_of_a_model_that_is_not_there_is_refused(run: Run) -> None:
    with pytest.raises(Stopped, match=r'"global" is not allowed with method = "local", which has'):
        run(method="local", score__primary="global")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (None, "the confusion is missing"),
        ([[0, 0, 6], [0, 1, 2], [2, 2, 3]], "the confusion does not count 10 samples"),
        ([[0, 0, 7], [0, 1, 0], [2, 2, 3]], "the confusion does not count 10 samples"),
        ([], "the confusion does not count 10 samples"),
        ([[0, 0, 5], [0, 1, 2], [2, 2, 3]], "the confusion contradicts the accuracy 0.9"),
        ([[0, 0, 6], [0, 3, 1], [2, 2, 3]], "a class that is not among the 3 classes"),
        ([[-1, 0, 1], [0, 0, 6], [2, 2, 3]], "a class that is not among the 3 classes"),
        ([[0, 0, 3], [0, 0, 3], [0, 1, 1], [2, 2, 3]], "pairs of classes are not ascending"),
        ([[0, 1, 1], [0, 0, 6], [2, 2, 3]], "pairs of classes are not ascending"),
    ],
)
def test_a_confusion_that_cannot_be_is_refused(changed: Any, reason: str) -> None:
    def reply(found: Any) -> ScoreReply:
        made = None if found is None else torch.tensor(found, dtype=torch.int32).reshape(-1, 3)
        return ScoreReply(n=10, accuracy=0.9, accuracy_global=None, confusion=made)

    tested, method = client(n_test=10), server(method="local")
    score_check(method, True)(tested, reply(GOOD))
    with pytest.raises(ValueError, match=reason):
        score_check(method, True)(tested, reply(changed))
    with pytest.raises(ValueError, match="the confusion was not asked for"):
        score_check(method, False)(tested, reply(GOOD))


def scored(t: int, **more: Any) -> Entry:
    given = {"personal": {**PERSONAL, "clients": 2}, "by_class": BY_CLASS, **more}
    return Entry.model_validate({"round": t, **given})


def test_a_log_names_the_score_that_counts_and_adds_the_other() -> None:
    file = io.StringIO()
    with Progress(2, Console(file=file, width=100)) as progress:
        progress.on_round(Entry.model_validate({"round": 0, "clients": [{"k": 0}, {"k": 1}]}))
        progress.on_round(scored(1, primary="personal", accuracy=0.3))
        progress.on_round(scored(2, accuracy=0.9))
    first, second, third = file.getvalue().splitlines()
    assert first == "census: 2 clients"
    assert second.startswith("round 1/2, personal accuracy 80.0 %, best 80.0 %, global accuracy 30")
    assert third == "round 2/2, accuracy 90.0 %, best 90.0 %, personal accuracy 80.0 %"


def test_a_terminal_shows_the_statistics(played: Run) -> None:
    console = Console(record=True, width=200)
    show_summary(api.load(played(method="local").folder)._read(), console)
    text = console.export_text()
    assert all(name in text for name in ("personal accuracy", "worst tenth", "macro F1"))


def test_trackers_get_the_score_that_counts() -> None:
    told = numbers.scalars(scored(1, primary="personal", accuracy=0.3))
    assert told["primary_score"] == told["personal/accuracy"] == 0.8 and told["accuracy"] == 0.3
    assert told["personal/worst_tenth"] == 0.5 and told["by_class/macro_f1"] == 0.85
    assert "by_class/accuracy" not in told
    assert numbers.scalars(scored(1, accuracy=0.3))["primary_score"] == 0.3


def test_a_table_has_the_score_that_counts_and_says_whose(played: Run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'title = "Whose"\nseeds = [1]\n[[row]]\nname = "FedAvg"\nset = { method = "fedavg" }\n'
        '[[row]]\nname = "Local"\nset = { method = "local" }\n[[column]]\nname = "toy"\n'
    )
    file, out = table.read(tmp_path / "a.toml"), tmp_path / "out"
    runs = {"FedAvg": played(method="fedavg"), "Local": played(method="local")}
    for cell in table.cells(file):
        recorded = Recorded.of(cell.flat, runs[cell.row].folder)
        assert recorded is not None
        table.records.append(out, recorded)
        course = recorded.course("primary")
        assert course[-1] == (2, runs[cell.row].summary["primary"]["final"])
    filled = table.collect(file, out)
    for row, run in runs.items():
        expected = 100 * run.summary["primary"]["final"]
        assert filled.cell(row, "toy").values == (pytest.approx(expected),)
    assert filled.notes == (
        "Of the clients' models on their own test samples: Local; the others: the server's model "
        "on its test set.",
    )
    earlier = recorded.model_copy(update={"summary": {"accuracy": {"final": 0.5}}})
    assert earlier.measured("primary.final") == 0.5 and not earlier.personal
