"""BatchNorm's running statistics, measured by clients for the models that are scored and saved."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from client_app.participant import Participant
from common.exchange.protocol import StatisticsReply, StatisticsRequest
from common.exchange.records import StateDict
from common.models.batchnorm import measure, statistics
from common.parse import parse
from common.training.task import evaluate
from deploy.run.loopback import Loopback
from server_app.scoring.recalibrate import pooled
from server_app.stopped import Stopped
from tests.support.halves import task
from tests.support.tiny import Run, TinyRun, flat, play, under

NET = "cnn3@0.5"
NORMS = 3  #: of this network, one behind the other
FEDAVG = {"method": "fedavg", "fleet": NET, "score__bn": "recalibrated"}


def test_two_clients_by_hand() -> None:
    def told(mean: float, variance: float) -> StateDict:
        both = {"bn.running_mean": torch.tensor([mean]), "bn.running_var": torch.tensor([variance])}
        return {name: value.double() for name, value in both.items()}

    found = pooled([(1, told(0.0, 1.0)), (3, told(4.0, 2.0))])
    assert found["bn.running_mean"].tolist() == [3.0]
    assert found["bn.running_var"].tolist() == [4.75]  # (1 (1 + 9) + 3 (2 + 1)) / 4


@pytest.mark.parametrize("size", [2, 3, 4, 256])
def test_no_batch_for_batch_statistics_is_a_lone_sample(size: int) -> None:
    ours = task(score__batch_size=size)
    for n in range(2, 30):
        x, y = torch.zeros(n, 1, 8, 8, dtype=torch.uint8), torch.arange(n)
        labels = [labels for _, labels in ours.mixed(x, y, "x")]
        assert min(map(len, labels)) > 1 and sorted(torch.cat(labels).tolist()) == y.tolist()


# The statistics themselves.
def participants(config: dict[str, Any], ks: Iterable[int]) -> list[Participant]:
    return [Participant(parse(config), {"partition-id": k, "device": "cpu"}, "test") for k in ks]


def apart(config: dict[str, Any], saved: StateDict, spec: str, ks: Iterable[int]) -> list[float]:
    """How far each saved mean and variance is from that of the data of clients ``ks`` taken
    together, in one process and one batch, relative to the largest."""
    several = participants(config, ks)
    net = several[0].model(spec, saved)
    sets = [p.train_set for p in several]
    x, y = (torch.cat([pair[i] for pair in sets]) for i in (0, 1))
    batch = (images for images, _ in several[0].task.in_order(x, y, len(x)))
    found, held = measure(net, batch, by_batch=False), statistics(net)
    return [float((found[n] - held[n]).abs().max() / found[n].abs().max()) for n in found]


def test_after_as_many_passes_as_norms_they_are_those_of_all_data(tmp_path: Path) -> None:
    exact, rough = (flat(tmp_path / f"{p}", **FEDAVG, score__passes=p) for p in (NORMS, 1))
    assert max(apart(exact, play(exact).model, NET, range(4))) < 1e-5
    first, *others = apart(rough, play(rough).model, NET, range(4))[::2]
    assert first < 1e-5 < min(others), "one pass is exact for the first layer alone"


def test_networks_of_several_architectures_are_measured_by_their_clients(tmp_path: Path) -> None:
    fleet = {**FEDAVG, "fleet": f"{NET},cnn2@0.5", "average__across": "same"}
    config = flat(tmp_path, **fleet, score__passes=NORMS)
    held = play(config).model
    for spec, ks in ((NET, (0, 2)), ("cnn2@0.5", (1, 3))):
        mine = {n.removeprefix(f"{spec}/"): w for n, w in held.items() if n.startswith(spec)}
        assert max(apart(config, mine, spec, ks)) < 1e-5


def test_further_models_are_measured_too(tmp_path: Path) -> None:
    oca = {**FEDAVG, "oca__aggregate": "on", "per_round": 4, "rounds": 1}
    run = play(flat(tmp_path, **oca))
    scored = run.journal[-1]
    assert scored["accuracies"]["aca"] == scored["accuracy"], "with everybody active both are one"
    assert scored["accuracy_bn"]["recalibrated"] == scored["accuracy"]


# What they are for.
@pytest.mark.full
def test_a_model_that_only_saw_noise_works_as_it_is_saved(tmp_path: Path) -> None:
    accuracies = {}
    for bn in ("running", "recalibrated"):
        one = {"method": "lwn", "rounds": 1, "fleet": "resnet8@0.25", "train__epochs": 4}
        config = flat(tmp_path / bn, **one, score__bn=bn, **under("noise", batches=30, lr=0.05))
        run, (p,) = play(config), participants(config, [0])
        net = p.model("resnet8@0.25", run.model)
        test = p.dataset.x_test, p.dataset.y_test
        accuracies[bn] = evaluate(net, *test, p.task, bn="running").accuracy
        shown = run.journal[-1]["accuracy_bn"]
        assert shown[bn] == accuracies[bn] == run.summary["accuracy"]["final"]
        assert set(shown) == {"running", "batch", bn}
    assert accuracies["running"] < 0.45 and accuracies["recalibrated"] > 0.8, "of three classes"


def test_training_is_the_same_as_without(run: Run) -> None:
    plain, anew = run(**{**FEDAVG, "score__bn": "running"}), run(**FEDAVG)
    changed = {name for name, w in plain.model.items() if not torch.equal(w, anew.model[name])}
    assert changed == set(statistics(task().build(NET, name=("x",))))
    told = [[entry["accuracy_bn"]["running"] for entry in r.journal] for r in (plain, anew)]
    assert told[0] == told[1] and plain.journal[0]["accuracy"] == anew.journal[0]["accuracy"]


def test_a_network_without_batchnorm_sends_and_changes_nothing(run: Run) -> None:
    lenet = {**FEDAVG, "fleet": "lenet5@0.5"}
    plain, anew = run(**{**lenet, "score__bn": "running"}), run(**lenet)
    assert plain.weights == anew.weights
    assert plain.journal[-1]["bytes"] == anew.journal[-1]["bytes"]
    assert "accuracy_bn" not in anew.journal[-1]


# Who is asked, and what it costs.
class Listening(Loopback):  # type: ignore[misc]
    """Notes whom it asks for statistics, round by round, and lets ``change`` at the answers."""

    asked: list[tuple[int, list[int]]]
    change: Any = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        if sent and sent[0].metadata.message_type == "evaluate.statistics":
            t = int(sent[0].metadata.group_id)
            self.asked.append((t, [m.metadata.dst_node_id - 1 for m in sent]))
            for message in sent:
                StatisticsRequest.unpack(message.content)
        return list(super().push_messages(sent))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(list(message_ids)))
        for reply in replies:
            mine = reply.metadata.src_node_id == 2 and self.change is not None
            if mine and reply.metadata.message_type == "evaluate.statistics":
                told = StatisticsReply.unpack(reply.content)
                reply.content = told.model_copy(update=type(self).change(told)).pack()
        return replies


def listened(
    folder: Path, change: Callable[[StatisticsReply], dict[str, Any]] | None = None, **changes: Any
) -> tuple[TinyRun, list[tuple[int, list[int]]]]:
    config = flat(folder, **{**FEDAVG, **changes})
    kind = type("Grid", (Listening,), {"asked": [], "change": change and staticmethod(change)})
    grid = kind(4, config, workers=0)
    return play(config, grid), grid.asked


def test_asked_are_those_of_a_scored_round_and_after_the_last_all(tmp_path: Path) -> None:
    run, asked = listened(tmp_path, rounds=3, per_round=2, score__every=2, score__passes=2)
    two = run.journal[2]["selected"]
    assert asked == [(2, two), (2, two), (3, [0, 1, 2, 3]), (3, [0, 1, 2, 3])]


def test_the_bytes_are_counted(tmp_path: Path) -> None:
    """A pass takes each client the model down, and a mean and a variance for each channel up."""
    runs = [listened(tmp_path / f"{p}", rounds=1, score__passes=p)[0] for p in (1, 2)]
    once, twice = (run.journal[-1]["bytes"] for run in runs)
    model = sum(value.nbytes for value in runs[0].model.values())
    told = sum(8 * value.numel() for value in statistics(task().build(NET, name=("x",))).values())
    assert twice["arrays_down"] - once["arrays_down"] == 4 * model
    assert twice["arrays_up"] - once["arrays_up"] == 4 * told


# Clients that fail or lie.
def in_the_first(change: Callable[[torch.Tensor], torch.Tensor], entry: str) -> Any:
    def changed(told: StatisticsReply) -> dict[str, Any]:
        found = dict(told.models[NET])
        found[entry] = change(found[entry].clone())
        return {"models": {NET: found}}

    return changed


MEAN, VARIANCE = "stem.bn.running_mean", "stem.bn.running_var"
LIES: dict[str, tuple[Callable[[StatisticsReply], dict[str, Any]], str]] = {
    "n": (lambda told: {"n": told.n + 1}, "training samples, in the census the client had"),
    "models": (lambda told: {"models": {}}, r"it is of the models \[\], expected \['cnn3@0.5'\]"),
    "more": (lambda told: {"models": {**told.models, "x": {}}}, "it is of the models"),
    "layer": (lambda told: {"models": {NET: {}}}, "lacks 6 entries"),
    "nan": (in_the_first(lambda v: v * torch.nan, MEAN), "not finite"),
    "variance": (in_the_first(lambda v: -v - 1, VARIANCE), "negative variances"),
    "shape": (in_the_first(lambda v: v[:-1], MEAN), "expected float64"),
    "dtype": (in_the_first(lambda v: v.float(), MEAN), "expected float64"),
    "far": (in_the_first(lambda v: v + 2e15, MEAN), r"values beyond 1e\+15"),
    "wide": (in_the_first(lambda v: v + 2e30, VARIANCE), r"values beyond 1e\+30"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_lies_is_named_left_out_and_not_asked_again(lie: str, tmp_path: Path) -> None:
    change, reason = LIES[lie]
    lenient = {"rounds": 1, "min_replies": 0.5, "score__passes": NORMS}
    run, asked = listened(tmp_path, change, **lenient)
    assert [ks for _, ks in asked] == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]
    (failure,) = run.summary["failures"]
    assert failure["k"] == 1 and failure["reason"].startswith("statistics refused: ")
    assert re.search(reason, failure["reason"]), failure["reason"]
    # without client 1 the third layer is exact one pass later
    config = flat(tmp_path, **FEDAVG)
    assert max(apart(config, run.model, NET, [0, 2, 3])[:2]) < 1e-5


def test_by_default_the_run_stops_as_for_a_round(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"3 of 4 measurements are good.*client 1: statistics refuse"):
        listened(tmp_path, LIES["n"][0], rounds=1)


def test_a_client_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Participant.statistics

    def failing(self: Participant, *given: Any, **named: Any) -> StateDict:
        if self.k == 2:
            raise OSError("disk full")
        return honest(self, *given, **named)

    monkeypatch.setattr(Participant, "statistics", failing)
    run, asked = listened(tmp_path, rounds=1, min_replies=0.5, score__passes=2)
    assert [ks for _, ks in asked] == [[0, 1, 2, 3], [0, 1, 3]]
    (failure,) = run.summary["failures"]
    assert failure == {"k": 2, "round": 1, "reason": "OSError: disk full", "kind": "client error"}
