"""Fine-tuning at scoring: a copy is trained, scored and discarded; the run stays what it is."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file
from torch import Tensor, nn

from client_app.fine_tuning import fine_tuned
from client_app.participant import Participant
from common.exchange import tree
from common.exchange.model_file import digest
from common.exchange.protocol import FineTunedScoreReply
from common.methods import names, options
from common.models import build
from common.models.classifier import Classifier
from common.parse import parse
from deploy.run.loopback import Loopback
from server_app.global_model import Averaged
from server_app.methods import half
from tests.support.battery import config, tiers
from tests.support.tiny import Run, TinyRun, flat, play

ON = {"finetune__epochs": 2}
SCORED = {"scores", "fairness", "bytes", "metrics", "flops", "memory"}


def states(run: TinyRun) -> dict[str, str]:
    """Return a digest of every file that the clients kept, by its path."""
    root = run.folder / "state"
    files = sorted(root.rglob("*.safetensors"))
    return {str(f.relative_to(root)): digest(load_file(f)) for f in files}


def participant(folder: Path, **changes: Any) -> Participant:
    settings = parse(flat(folder, **{"method": "fedavg", **changes}))
    return Participant(settings, {"partition-id": 0, "num-partitions": 4}, "e")


AVERAGING = [name for name in names() if issubclass(half(name), Averaged)]


def test_every_averaging_method_reads_it() -> None:
    assert [name for name in AVERAGING if "finetune" not in options(name).uses] == []


@pytest.mark.parametrize("method", tiers(AVERAGING, ("fedavg", "fedper")))
def test_it_changes_no_training_and_scores_before_and_after(method: str, tmp_path: Path) -> None:
    rounds = {"rounds": 2, "score__clients_every": 1}
    without = play(config(method, tmp_path / "without", **rounds))
    with_it = play(config(method, tmp_path / "with", **rounds, **ON))
    assert with_it.weights == without.weights
    assert states(with_it) == states(without)
    for one, other in zip(with_it.timeless, without.timeless, strict=True):
        assert one.keys() == other.keys()
        for key in other.keys() - SCORED:
            assert one[key] == other[key], key
        tuned = {k: v for k, v in one.get("metrics", {}).items() if k.startswith("finetune_")}
        rest = {k: v for k, v in one.get("metrics", {}).items() if k not in tuned}
        assert rest == other.get("metrics", {})
        if one["round"]:
            assert tuned.keys() == {"finetune_loss", "finetune_steps"}
            assert tuned["finetune_steps"] == 2 * 2, "epochs times batches"
            assert {*one["fairness"]["models"]} >= {"finetuned"}
        for before, after in zip(other.get("scores", []), one.get("scores", []), strict=True):
            assert 0 <= after["accuracies"].pop("finetuned") <= 1
            assert {"accuracies": {}, **before} == after


def test_without_epochs_test_samples_or_an_average_nothing_is_tuned(run: Run) -> None:
    for settings in ({"method": "fedavg"}, {"method": "local", **ON}):
        played = run(**settings, rounds=1)
        assert all("accuracies" not in score for score in played.journal[1]["scores"])
        assert not any(name.startswith("finetune") for name in played.journal[1]["metrics"])
    played = run(method="fedavg", rounds=1, data__test_fraction=0.0, **ON)
    for score in played.journal[1]["scores"]:
        assert score["accuracy"] is None and score.get("accuracies", {}) == {}


def test_a_head_by_hand(tmp_path: Path) -> None:
    # W = 0, f = (1, 0), y = 0, η = 1: row 0 is (.5, 0) after a step, (.768941, 0) after two.
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2, bias=False)
            self.base = nn.Parameter(torch.tensor([1.0, 0.0]))
            nn.init.zeros_(self.head.weight)

        def features(self, x: Tensor) -> Tensor:
            return self.base.expand(len(x), 2)

    for epochs, expected in ((1, 0.5), (2, 0.768941)):
        settings = {"train__lr": 1.0, "train__momentum": 0.0, "train__batch_size": 1000}
        p = participant(tmp_path, **settings, finetune__epochs=epochs, finetune__layers="head")
        x, y = p.train_set
        p.__dict__["train_set"] = x, torch.zeros_like(y)
        net = Two()
        tuned, metrics = fine_tuned(p, 1, net)
        rows = [[expected, 0.0], [-expected, 0.0]]
        assert torch.allclose(tuned.head.weight, torch.tensor(rows), atol=1e-6)
        assert metrics["steps"] == epochs and bool((net.head.weight == 0).all())


@pytest.mark.parametrize("layers", ["all", "head"])
def test_the_copy_alone_changes_and_with_the_head_nothing_else(layers: str, tmp_path: Path) -> None:
    p = participant(tmp_path, **ON, finetune__layers=layers, train__weight_decay=0.1)
    net = build("cnn2@0.5", (1, 8, 8), 3, seed=1)
    before = tree.snapshot(net)
    after, again, later = (tree.snapshot(fine_tuned(p, t, net)[0]) for t in (1, 1, 2))
    assert all(torch.equal(tree.snapshot(net)[name], value) for name, value in before.items())
    moved = {name for name in before if not torch.equal(after[name], before[name])}
    assert moved == (before.keys() if layers == "all" else {"head.weight", "head.bias"})
    assert all(torch.equal(again[name], value) for name, value in after.items())
    assert not torch.equal(later["head.weight"], after["head.weight"])


@pytest.mark.full
def test_its_costs_are_counted_apart_from_training(run: Run) -> None:
    settings = {"method": "fedavg", "fleet": "cnn2@0.5", "rounds": 1, "flops": True, "memory": True}
    changes = ({}, ON, {**ON, "finetune__layers": "head"})
    without, every, head = (run(**settings, **more) for more in changes)
    plain, all_layers, last = (one.summary["flops"] for one in (without, every, head))
    assert "finetune" not in plain
    assert plain["clients"] == all_layers["clients"] == last["clients"]
    # as many epochs as training has: the same operations; the base needs no backward pass
    assert all_layers["finetune"] == plain["clients"] > 2 * last["finetune"] > 0
    assert all_layers["total"] == plain["total"] + all_layers["finetune"]
    assert every.summary["memory"]["clients"] >= without.summary["memory"]["clients"]


class Scoring(Loopback):  # type: ignore[misc]
    """Loopback that updates client 1's score with ``change``."""

    change: ClassVar[dict[str, Any]] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in super().pull_messages(list(message_ids)):
            about = reply.metadata
            if about.src_node_id == 2 and about.message_type == "evaluate":
                score = FineTunedScoreReply.unpack(reply.content)
                reply.content = score.model_copy(update=self.change).pack()
            yield reply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accuracies": {}}, r"it scores the models \[\], expected \['finetuned'\]"),
        ({"accuracies": {"finetuned": 2.0}}, "field 'accuracies.finetuned'"),
        ({"metrics": {"loss": float("inf")}}, "field 'metrics.loss'"),
        ({"metrics": {f"m{i}": 0.0 for i in range(11)}}, "field 'metrics'"),
    ],
    ids=["missing", "impossible", "infinite", "too many"],
)
def test_a_false_score_is_refused_by_name(change, reason, tmp_path) -> None:
    grid = type("Grid", (Scoring,), {"change": change})
    played = play(flat(tmp_path, method="fedavg", rounds=1, **ON), grid)
    (failure,) = played.journal[1]["failures"]
    assert failure["k"] == 1 and failure["reason"].startswith("score refused: ")
    assert re.search(reason, failure["reason"]), failure["reason"]
    assert [score["k"] for score in played.journal[1]["scores"]] == [0, 2, 3]
