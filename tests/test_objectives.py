"""What is learnt: losses, predictions and scores of classes, labels, numbers and tokens."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn
from sklearn.utils.class_weight import compute_class_weight
from torch.testing import assert_close

from client_app.participant import Participant
from common.data import DATASETS, Source, load
from common.data.embedded import toy
from common.data.shares import share
from common.measures import MACRO_AUC, MEASURES, PERPLEXITY, R2, RMSE, Measure
from common.methods import names, options
from common.metrics import auc
from common.objectives import (
    MOST_NATS,
    Answers,
    Labels,
    NextToken,
    Number,
    Objective,
    Summed,
    macro_auc,
)
from common.parse import parse
from common.settings.config import Data
from common.training.task import Task, check_fleet
from server_app.callbacks.collapse import collapse
from server_app.storage.checkpoint import Checkpoint
from tests.support import battery, outputs
from tests.support.tiny import flat, play

DRAW = torch.Generator().manual_seed(5)
LABELS = Labels(("a", "b", "c"))
NUMBER = Number(("u", "v"), (3.0, -1.0), (2.0, 0.5))
TOKENS = NextToken(("padding", "a", "bb", "cccc"), (0, 1, 2, 4))
CUTTING = ("fedper", "fedrep", "lg-fedavg", "moon")  #: methods that need a head of its own
ON_OTHERS = [
    (method, objective)
    for method in names()
    for objective in options(method).objectives
    if objective != "classes"
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets ``made-labels``, ``made-number`` and ``made-next-token``."""
    for name in ("labels", "number", "next-token"):
        dataset = getattr(outputs, name.replace("-", "_"))()
        monkeypatch.setitem(DATASETS, f"made-{name}", Source(lambda _, d=dataset: d, "made"))


def settings(method: str, objective: str, out: Path, **changes: Any) -> dict[str, Any]:
    """A tiny run of a method on made data."""
    data = {"data__name": f"made-{objective}", "data__samples": 0, "data__test_samples": 0}
    public = {"data__public": 0.4} if "data__public" in battery.OVERRIDES.get(method, {}) else {}
    lr = {"labels": 0.1, "number": 0.03, "next-token": 0.02}[objective]
    train = {"train__epochs": 6, "train__lr": lr, "share_counts": True}
    if objective == "next-token":
        spec = "char-lstm@0.25" if method in CUTTING else "gpt-1@0.5"
        adapted = method in (*battery.OF_ONE_RANK, *battery.OF_RANKS)
        data |= {"fleet": "gpt-1-lora8@0.5"} if adapted else {"fleet": spec, "global_model": spec}
        train |= {"train__optimizer": "adam"} if method != "scaffold" else {"train__lr": 0.3}
        data |= {"node.1.model": "gpt-2@0.5"} if method == "inclusivefl" else {}
    return battery.config(method, out, **{**data, **public, **train, "rounds": 3, **changes})


# Losses and scores by hand, and beside scikit-learn's.


def drawn(objective: Objective, n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.randn(n, len(objective.outputs), generator=DRAW)
    if isinstance(objective, Labels):
        return found, (torch.rand(n, 3, generator=DRAW) < torch.sigmoid(found)).float()
    return found, NUMBER.predicted(found + torch.randn(n, 2, generator=DRAW))


def test_labels_have_the_scores_of_scikit_learn() -> None:
    z, y = drawn(LABELS)
    scores, p = LABELS.scores(z, y), torch.sigmoid(z).numpy()
    assert scores.measures["macro_auc"] == pytest.approx(sklearn.roc_auc_score(y, p))
    f1 = sklearn.f1_score(y, p >= 0.5, average=None)
    assert scores.by_output["f1"] == pytest.approx(f1.tolist())
    assert scores.measures["macro_f1"] == pytest.approx(f1.mean())
    assert float(LABELS.total(z, y)) / len(z) == pytest.approx(float(LABELS.loss(z, y)), rel=1e-6)
    assert float(LABELS.loss(torch.zeros(4, 3), y[:4])) == pytest.approx(LABELS.guess)


def test_an_answer_is_an_exact_match_if_all_its_tokens_are_right() -> None:
    answers = Answers(TOKENS.outputs, TOKENS.token_bytes)
    y = torch.tensor([[0, 1, 2], [0, 3, 0], [0, 2, 2]])
    most = torch.tensor([[3, 1, 2], [1, 3, 1], [1, 2, 3]])
    z = torch.zeros(3, 3, 4).scatter(2, most[..., None], 1)
    scores = answers.scores(answers.digest(z, y), y).measures
    assert scores["exact_match"] == pytest.approx(2 / 3)
    plain = TOKENS.scores(TOKENS.digest(z, y), y).measures
    assert {**scores, "exact_match": None} == {**plain, "exact_match": None}
    sums = torch.stack([answers.sums(row[None], y[:1]) for row in answers.digest(z, y)]).sum(0)
    assert answers.pooled(sums).measures == pytest.approx(scores)
    answers.check_sums(sums, 3)
    for wrong in (2.0, -3.0):
        with pytest.raises(ValueError, match="not those of 3 samples"):
            answers.check_sums(sums + torch.tensor([0, 0, 0, 0, 0, wrong]), 3)


def test_equal_scores_count_half_and_an_area_needs_both_kinds() -> None:
    positive = np.array([True, False, True, False])
    assert auc(positive, np.array([1.0, 1.0, 2.0, 0.0])) == 0.875
    assert auc(positive | True, np.arange(4.0)) is None
    z = torch.full((4, 3), -1.0)
    alone = LABELS.scores(z, torch.zeros(4, 3))
    assert alone.measures == {"macro_auc": None, "macro_f1": None}
    one = LABELS.scores(z, torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]))
    assert one.measures == {"macro_auc": 0.5, "macro_f1": 0.0}


def test_numbers_have_the_scores_of_scikit_learn_in_their_own_units() -> None:
    z, y = drawn(NUMBER)
    found, scores = NUMBER.predicted(z), NUMBER.scores(z, y)
    assert_close(found[:, 1], z[:, 1] * 0.5 - 1)
    assert scores.measures["r2"] == pytest.approx(sklearn.r2_score(y, found), rel=1e-5)
    rmse = np.sqrt(sklearn.mean_squared_error(y, found, multioutput="raw_values"))
    assert scores.by_output["rmse"] == pytest.approx(rmse.tolist(), rel=1e-5)
    assert "rmse" not in scores.measures, "a mean over different units"
    standardised = (y - torch.tensor([3.0, -1.0])) / torch.tensor([2.0, 0.5])
    assert_close(NUMBER.loss(z, y), F.mse_loss(z, standardised))
    assert_close(replace(NUMBER, how="huber").loss(z, y), F.huber_loss(z, standardised))
    assert_close(NUMBER.total(z, y) / len(z), NUMBER.loss(z, y))
    single = Number(("u",), (3.0,), (2.0,)).scores(z[:, :1], y[:, :1])
    assert list(single.measures) == ["r2", "rmse"]
    assert single.measures["rmse"] == pytest.approx(float(rmse[0]), rel=1e-5)
    assert NUMBER.scores(z[:1], y[:1]).measures["r2"] is None, "one sample has no spread"


def test_the_area_of_classes_is_that_of_one_against_the_others() -> None:
    z, y = torch.randn(50, 4, generator=DRAW), torch.randint(0, 4, (50,), generator=DRAW)
    expected = sklearn.roc_auc_score(y, F.softmax(z, 1), multi_class="ovr")
    assert macro_auc(z, y) == pytest.approx(expected)


def test_next_tokens_are_scored_over_all_kept_tokens_and_perplexities_never_averaged() -> None:
    """Nats 1 and 3 over 30 and 10 tokens: the pooled perplexity is exp 1.5."""
    rows = torch.tensor([[30.0, 15, 30, 60], [30, 2, 10, 20]], dtype=torch.float64)
    y = torch.ones(1, 1)
    clients = [TOKENS.sums(row[None], y) for row in rows]
    for sums in clients:
        TOKENS.check_sums(sums, 1)
    pooled = TOKENS.pooled(torch.stack(clients).sum(0)).measures
    assert pooled["perplexity"] == pytest.approx(math.exp(1.5)) == pytest.approx(4.481689)
    assert pooled["bits_per_byte"] == pytest.approx(60 / (math.log(2) * 80))
    assert pooled["token_accuracy"] == 17 / 40
    assert PERPLEXITY.combined([math.e, math.e**3], [3, 1]) == pytest.approx(math.exp(1.5))
    wrongs = (0, 31.0), (2, 31.0), (2, 0.5), (3, 29.5), (1, -1.0), (1, 1e300), (4, 0.0)
    for column, wrong in wrongs:
        sums = clients[0].clone()
        sums[0, column] = wrong
        with pytest.raises(ValueError, match="the sums are not those of 1 samples"):
            TOKENS.check_sums(sums, 1)


def test_the_loss_of_next_tokens_is_the_mean_over_kept_tokens() -> None:
    """As with ``labels`` of −100 elsewhere: not the mean of the texts' means."""
    z = torch.randn(2, 4, 4, generator=DRAW)
    y = torch.tensor([[1, 2, 3, 1], [2, 0, 0, 0]], dtype=torch.int32)
    marked = torch.where(y > 0, y, -100).long()
    expected = F.cross_entropy(z.flatten(0, 1), marked.flatten(), ignore_index=-100)
    assert_close(TOKENS.loss(z, y), expected)
    assert TOKENS.terms(y) == 5
    assert_close(TOKENS.total(z, y), 5 * expected)
    digest, right = TOKENS.digest(z, y), (z.argmax(2) == y) & (y > 0)
    assert_close(digest[:, 0].sum(), (5 * expected).double())
    assert digest[:, 1].tolist() == right.sum(1).tolist()
    assert digest[:, 2].tolist() == [4, 1] and digest[:, 3].tolist() == [1 + 2 + 4 + 1, 2]
    scores = TOKENS.scores(digest, y).measures
    assert scores["bits_per_byte"] == pytest.approx(float(expected) * 5 / math.log(2) / 10)
    assert TOKENS.digest(z * torch.nan, y)[1, 0] == MOST_NATS
    teacher = TOKENS.form(TOKENS.kept(z, y))
    assert teacher.shape == (5, 4)
    assert float(TOKENS.divergence(teacher, teacher, "batchmean")) == pytest.approx(0, abs=1e-6)
    means = TOKENS.pooled_features(z, y)
    assert_close(means, torch.stack([z[0].mean(0), z[1, 0]]))


@pytest.mark.parametrize("objective", [LABELS, NUMBER], ids=lambda o: o.name)
def test_sums_of_clients_give_the_scores_of_all_their_samples(objective: Summed) -> None:
    z, y = drawn(objective, 400)
    parts = zip(z.split([150, 50, 200]), y.split([150, 50, 200]), strict=True)
    sums = [objective.sums(*part) for part in parts]
    for n, each in zip((150, 50, 200), sums, strict=True):
        objective.check_sums(each, n)
    pooled, whole = objective.pooled(torch.stack(sums).sum(0)), objective.scores(z, y)
    assert pooled.measures.keys() == whole.measures.keys()
    for name, value in whole.measures.items():
        assert pooled.measures[name] == pytest.approx(value, abs=2e-3 if "auc" in name else 1e-6)
    for name, of in whole.by_output.items():
        assert pooled.by_output[name] == pytest.approx(of, abs=5e-3 if name == "auc" else 1e-5)
    for wrong, n in ((sums[0], 151), (sums[0][:1], 150), (sums[0].float(), 150)):
        with pytest.raises(ValueError, match="the sums are"):
            objective.check_sums(wrong, n)
    with pytest.raises(ValueError, match="the sums are not those of 150 samples"):
        objective.check_sums(torch.full_like(sums[0], math.nan), 150)


def test_the_outputs_of_rare_labels_are_ranked_when_they_are_pooled() -> None:
    """Logits around −12, as of a label that one sample of a hundred has."""
    z = -12 + 1.5 * torch.randn(3000, 3, generator=DRAW)
    y = (torch.rand(3000, 3, generator=DRAW) < torch.sigmoid(2 * (z + 9))).float()
    whole, pooled = LABELS.scores(z, y).by_output["auc"], LABELS.pooled(LABELS.sums(z, y))
    assert all(0.8 < area < 1 for area in whole if area)
    assert pooled.by_output["auc"] == pytest.approx(whole, abs=0.01)


def test_sums_that_no_samples_have_are_refused() -> None:
    z, y = drawn(NUMBER, 20)
    sums = NUMBER.sums(z, y)
    for column, value in ((3, -1.0), (2, 0.0)):
        wrong = sums.clone()
        wrong[0, column], wrong[0, 1] = value, 5.0
        with pytest.raises(ValueError, match="the sums are not those of 20 samples"):
            NUMBER.check_sums(wrong, 20)
    z, y = drawn(LABELS, 20)
    with pytest.raises(ValueError, match="the sums are not those of 20 samples"):
        LABELS.check_sums(LABELS.sums(z, y) * 0.5, 20)


def test_a_divergence_is_zero_for_the_teacher_and_by_hand_otherwise() -> None:
    teacher, student = torch.tensor([[0.0, 2.0, -1.0]]), torch.tensor([[1.0, 2.0, -1.0]])
    assert float(LABELS.divergence(teacher, teacher, "batchmean")) == pytest.approx(0)
    p, q = 0.5, 1 / (1 + math.exp(-1))
    by_hand = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert float(LABELS.divergence(teacher, student, "batchmean")) == pytest.approx(by_hand / 3)
    from_shares = LABELS.from_shares(student, LABELS.shares(teacher))
    assert float(from_shares) == pytest.approx(by_hand / 3, abs=1e-6)
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 1.0]])
    assert float(NUMBER.divergence(a, b, "batchmean")) == 2.5
    assert float(NUMBER.divergence(a, b, "mean")) == 1.25
    assert float(LABELS.sharpened(torch.tensor([[0.5, 0.9, 0.1]]), 0.1)[0, 1]) > 0.999


@pytest.mark.parametrize(
    ("objective", "y", "line"),
    [
        (Labels, [[0.0, 1], [0, 0]], "label 'a' has no sample, so nothing can be learnt of it"),
        (Labels, [[1.0, 1], [0, 1]], "label 'b' is on all samples"),
        (Number, [[1.0, 2], [4, 2]], "target 'b' is 2 for all samples"),
    ],
)
def test_values_that_teach_nothing_are_named(
    objective: type[Objective], y: list[list[float]], line: str
) -> None:
    with pytest.raises(ValueError, match=line):
        objective.check(torch.tensor(y), ("a", "b"), every=True)


def test_measures_know_their_direction_and_how_clients_combine() -> None:
    assert RMSE.better(1.0, 2.0) and RMSE.reaches(1.0, 1.0) and not RMSE.reaches(1.1, 1.0)
    assert RMSE.best([1.0, 3.0]) == 1.0
    assert RMSE.combined([3.0, 1.0], [1, 3]) == pytest.approx(math.sqrt((9 + 3) / 4))
    assert MACRO_AUC.combined([0.5, 1.0], [1, 3]) == 0.875
    with pytest.raises(ValueError, match=r"score.target = 1.5 is not allowed with R²; .* to 1"):
        R2.check("score.target", 1.5)
    R2.check("score.target", -3.0)


@pytest.mark.parametrize("measure", [R2, RMSE], ids=lambda m: m.name)
def test_a_collapse_is_a_change_for_the_worse(measure: Measure) -> None:
    """The scores of the R² run, mirrored, are those of the other direction."""
    sign = 1 if measure.higher else -1
    former = [sign * v for v in (0.60, 0.62, 0.61, 0.63)]
    for drop, before in ((0.1, 0.615), (0.7, None)):
        found = collapse(sign * drop, former, 0.0, higher=measure.higher)
        assert found == (before if before is None else pytest.approx(sign * before))


# Runs.


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        pytest.param(m, o, marks=[] if m in ("fedavg", "fml") else pytest.mark.full)
        for m, o in ON_OTHERS
    ],
)
@pytest.mark.usefixtures("made")
def test_a_method_learns_other_things_than_classes(
    method: str, objective: str, tmp_path: Path
) -> None:
    run = play(settings(method, objective, tmp_path))
    assert run.summary["failures"] == [] and run.summary["accuracy"] is None
    primary, personal = run.summary["primary"], run.summary["personal"]
    guess = {"macro_auc": 0.5, "r2": 0.0, "bits_per_byte": math.log2(outputs.LETTERS)}
    measure = MEASURES[primary["measure"]]
    worse = guess[measure.name] + (0.15 if measure.higher else -0.15)
    assert measure.better(primary["best"], worse), primary
    assert personal["pooled"] and measure.better(personal["best"], guess[measure.name])


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("objective", ["labels", "number", "next-token"])
def test_a_resumed_run_has_the_same_bits(objective: str, tmp_path: Path) -> None:
    whole = play(settings("fml", objective, tmp_path / "whole"))
    with pytest.raises(battery.Crash):
        play(settings("fml", objective, tmp_path / "part"), battery.Crashing)
    resumed = play(settings("fml", objective, tmp_path / "part", resume=True))
    assert resumed.timeless == whole.timeless and resumed.weights == whole.weights


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("method", ["fedavg", "lg-fedavg"])
def test_clients_can_have_the_weights_of_their_tokens_to_learn(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of two models moves from one to the other in proportion to p_0."""
    dataset, owner = outputs.next_token(), (torch.arange(160) >= 100).long()
    dataset.y[100:, 1:] = 0  # the texts of client 1 have one token to learn each
    owned = replace(dataset, owner=owner)
    monkeypatch.setitem(DATASETS, "made-owned", Source(lambda _: owned, "made"))
    data = {"clients": 2, "per_round": 2, "data__partition": "natural", "data__name": "made-owned"}
    config, w = parse(settings(method, "next-token", tmp_path / "samples", **data)), {}
    for weights in ("samples", "tokens", "uniform"):
        out, changes = tmp_path / weights, {"average__weights": weights, "rounds": 1}
        play(settings(method, "next-token", out, **data, **changes))
        saved = {**Checkpoint.load(out / "checkpoint.safetensors").state}
        means = [saved["w"]] if method == "fedavg" else [saved["head"]]
        w[weights] = torch.cat([value.flatten().double() for value in means[0].values()])
    shares = [share(config.data, k, 2, config.partition_seed) for k in (0, 1)]
    samples = [len(one.train) for one in shares]
    tokens = [int((one.train_set[1] > 0).sum()) for one in shares]
    of_samples, of_tokens = (0.5 - n[0] / sum(n) for n in (samples, tokens))
    assert samples == [80, 48] and tokens[0] > 5 * 80 and tokens[1] == 48
    expected = (w["uniform"] - w["samples"]) * of_tokens / of_samples
    assert_close(w["uniform"] - w["tokens"], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("method", sorted(set(names()) - {m for m, _ in ON_OTHERS}))
def test_other_methods_refuse_labels_in_one_line(method: str, tmp_path: Path) -> None:
    config = parse(settings(method, "labels", tmp_path))
    task = Task.of(config, load(config.data), torch.device("cpu"))
    with pytest.raises(ValueError, match=f'method = "{method}" learns classes, but .* labels: '):
        check_fleet(
            task,
        )


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("objective", "changes", "line"),
    [
        ("labels", {"data__partition": "label_dirichlet"}, "divides by class, but data set 'made'"),
        ("number", {"train__class_weights": "balanced"}, 'train.class-weights = "balanced" is not'),
        ("labels", {"score__target": 1.5}, "score.target = 1.5 is not allowed with macro AUC"),
        ("number", {"data__objective": "labels"}, "data set 'made-number' has number"),
        ("number", {"data__partition": "own"}, "a common scale: data.target-mean and data.target-"),
        (
            "number",
            {"data__target_mean": "1,2"},
            "data.target-mean and data.target-std should",
        ),
    ],
)
def test_settings_that_do_not_suit_are_refused(
    objective: str, changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=line):
        play(settings("fedavg", objective, tmp_path, **changes))


def test_a_target_beyond_the_range_of_accuracies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"score.target = 1.5 is .* with accuracy; allowed: 0 to 1"):
        play(battery.config("fedavg", tmp_path, score__target=1.5))


@pytest.mark.usefixtures("made")
def test_a_trusted_model_learns_numbers_too(tmp_path: Path) -> None:
    trusted = {"average__robust": "fltrust", "data__public": 0.4, "train__lr": 0.05}
    run = play(settings("fedavg", "number", tmp_path, **trusted))
    assert run.summary["primary"]["final"] > 0.15


@pytest.mark.usefixtures("made")
def test_a_target_that_the_score_reaches_ends_the_run(tmp_path: Path) -> None:
    ending = {"score__target": 0.55, "score__stop": True, "rounds": 9, "score__keep_best": True}
    run = play(settings("fedavg", "labels", tmp_path, **ending))
    course = [entry["measures"]["macro_auc"] for entry in run.journal[1:]]
    assert len(course) < 9 and course[-1] >= 0.55 and all(a < 0.55 for a in course[:-1])
    assert run.summary["rounds_to_target"]["first"] == len(course)
    assert (tmp_path / "best.safetensors").exists()


@pytest.mark.usefixtures("made")
def test_fine_tuned_and_several_models_have_scores_of_their_own(tmp_path: Path) -> None:
    several = {"average__across": "same", "finetune__epochs": 1, "score__clients_every": 1}
    last = play(settings("fedavg", "number", tmp_path, **several)).journal[-1]
    assert list(last["measures"]) == ["r2", "r2:mlp@0.25", "r2:cnn2@0.5"]
    named = ("r2:mlp@0.25", "r2:cnn2@0.5")
    assert last["measures"]["r2"] == pytest.approx(np.mean([last["measures"][n] for n in named]))
    assert all("r2:finetuned" in score["measures"] for score in last["scores"])
    assert "finetuned" in last["fairness"]["models"]


@pytest.mark.usefixtures("made")
def test_without_counts_personal_scores_are_means_over_clients(tmp_path: Path) -> None:
    last = play(settings("local", "labels", tmp_path, share_counts=False)).journal[-1]
    personal, scores = last["personal"], last["scores"]
    assert not personal.get("pooled", False)
    weights = [score["n"] for score in scores]
    for name in ("macro_auc", "macro_f1"):
        mean = np.average([score["measures"][name] for score in scores], weights=weights)
        assert personal["measures"][name] == pytest.approx(mean)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("counts", [True, False])
def test_samples_of_all_clients_have_a_score_where_no_clients_own_have(
    counts: bool, tmp_path: Path
) -> None:
    few = {"data__samples": 24, "data__test_fraction": 0.1, "data__min_size": 1}
    run = settings("local", "number", tmp_path, share_counts=counts, data__partition="iid", **few)
    last = play(run).journal[-1]
    personal, scores = last["personal"], last["scores"]
    assert {score["n"] for score in scores} == {1}
    assert all(score["measures"]["r2"] is None for score in scores)
    assert (personal["measures"]["r2"] is not None) == personal.get("pooled", False) == counts
    assert personal["clients"] == 0 and "worst" not in personal and "fairness" not in last


# Weights of classes.


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=[] if m in ("fedavg", "fml", "dl-mh") else pytest.mark.full)
        for m in names()
        if m != "fedktl"
    ],
)
def test_every_method_weighs_the_classes_of_its_clients(method: str, tmp_path: Path) -> None:
    skewed = {"data__partition": "label_dirichlet", "data__alpha": 0.8, "rounds": 1}
    skewed |= {"data__min_size": 8, "data__samples": 200}
    runs = [
        play(battery.config(method, tmp_path / how, **skewed, train__class_weights=how))
        for how in ("none", "balanced")
    ]
    losses = [
        {k: v for k, v in run.journal[1]["client_metrics"]["0"].items() if "steps" not in k}
        for run in runs
    ]
    assert losses[0] != losses[1]


def test_a_loss_without_cross_entropy_has_no_weights(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r'class-weights = "balanced" is not .* whose loss is ArcFace'
    ):
        parse(battery.config("fedktl", tmp_path, train__class_weights="balanced"))


def test_balanced_weights_are_those_of_scikit_learn(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, train__class_weights="balanced"))
    client = Participant(config, {"partition-id": 0}, "test")
    y = client.train_set[1].numpy()
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y)
    assert client.class_weights is not None
    assert client.class_weights.tolist() == pytest.approx(expected.tolist())


def test_a_data_set_says_what_it_teaches() -> None:
    found = outputs.number()
    assert load(Data(name="diabetes", partition="iid")).scale[0][0] == pytest.approx(152, abs=3)
    assert found.goal().name == "number" and toy().goal().name == "classes"
    assert load(Data(name="several-digits", partition="auto")).y.shape == (2400, 10)
