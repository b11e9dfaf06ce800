"""InclusiveFL: FedAvg across depths, with a learning rate for each size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.methods.inclusivefl import Up
from tests.support.battery import Changing, Crash, Crashing
from tests.support.tiny import Run, flat, play

FLEET = {"fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5"}


def test_it_is_fedavg_across_depths(run: Run) -> None:
    ours = run(method="inclusivefl", **FLEET)
    fedavg = run(method="fedavg", average__across="depth", **FLEET)
    assert ours.weights == fedavg.weights
    assert [e["accuracies"] for e in ours.journal] == [e["accuracies"] for e in fedavg.journal]


def test_every_size_is_scored_and_has_a_head_of_its_own(run: Run) -> None:
    played = run(method="inclusivefl", **FLEET)
    last = played.journal[-1]
    assert sorted(last["accuracies"]) == ["cnn2@0.5", "cnn3@0.5", "cnn4@0.5"]
    assert last["accuracy"] == pytest.approx(sum(last["accuracies"].values()) / 3)
    held = played.model
    heads = [held[f"{spec}head.weight"] for spec in ("", "cnn2@0.5/", "cnn3@0.5/")]
    assert not any(heads[i].equal(heads[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_a_size_has_a_learning_rate_of_its_own(run: Run) -> None:
    given: dict[str, Any] = {"method": "inclusivefl", **FLEET, "rounds": 1, "train__lr_decay": 0.5}
    plain = run(**given)
    slow = run(**given, inclusivefl__lr_factors="cnn3@0.5=0.5, cnn2@0.5=1")
    metrics = [each.journal[1]["client_metrics"] for each in (plain, slow)]
    assert [metrics[0][k] == metrics[1][k] for k in "0123"] == [True, False, True, True]
    # a run in which everybody goes half as far
    half = run(**given | {"train__lr": 0.025})
    assert half.journal[1]["client_metrics"]["1"] == metrics[1]["1"]


def test_a_resumed_run_goes_on_with_every_size(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "inclusivefl", **FLEET, "rounds": 3, "per_round": 2}
    whole = play(flat(tmp_path / "whole", **given))
    part = flat(tmp_path / "part", **given)
    with pytest.raises(Crash):
        play(part, Crashing(part["clients"], part, workers=0))
    resumed = play({**part, "resume": True})
    assert resumed.timeless == whole.timeless and resumed.weights == whole.weights


def test_weights_of_another_size_than_the_claimed_one_are_refused_by_name(tmp_path: Path) -> None:
    def smaller(up: Up) -> dict[str, Any]:
        return {"w": {name: w for name, w in up.w.items() if not name.startswith("layer1.1.")}}

    settings = flat(tmp_path, method="inclusivefl", **FLEET, min_replies=0.5, rounds=1)
    played = play(settings, Changing.by(Up, smaller)(4, settings, workers=0))
    (failure,) = played.journal[1]["failures"]
    assert failure["k"] == 1
    assert "w (cnn3@0.5) lacks 6 entries, first 'layer1.1.bn.bias'" in failure["reason"]


def test_no_other_way_across_is_inclusivefl(run: Run) -> None:
    with pytest.raises(ValueError, match='is not allowed with method = "inclusivefl"'):
        run(method="inclusivefl", average__across="layerwise")
