"""DL-MH: the identity with DL-SH, schemas, UHC, single classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common.methods.dl_mh import Up
from tests.support.battery import Changing
from tests.support.tiny import flat, play

SMALL: dict[str, Any] = {
    "rounds": 1,
    "data__public": 0.6,
    "data__samples": 200,
    "confidence__epochs": 1,
    "ensemble__epochs": 4,
}


def settings(tmp_path, method: str = "dl-mh", **changes: Any) -> dict[str, Any]:
    return flat(tmp_path, **{**SMALL, "method": method, **changes})


def test_dl_mh_in_which_every_client_has_every_class_is_dl_sh_to_the_bit(tmp_path):
    sh = play(settings(tmp_path / "sh", "dl-sh", rounds=2))
    mh = play(settings(tmp_path / "mh", "dl-mh", rounds=2))
    assert all(client["classes"] == [0, 1, 2] for client in mh.journal[0]["clients"])
    assert mh.weights == sh.weights
    assert mh.journal[2]["client_metrics"] == sh.journal[2]["client_metrics"]


def test_clients_send_only_the_columns_of_their_classes(tmp_path):
    result = play(
        settings(
            tmp_path,
            clients=2,
            data__partition="niid3",
            data__niid_scale="adapt",
            data__per_client=30,
        )
    )
    classes = [len(client["classes"]) for client in result.journal[0]["clients"]]
    expected = sum(120 * d + 120 + d for d in classes)
    assert result.journal[1]["cost"]["numbers"] == expected


def test_clients_of_a_single_class_still_teach_by_their_confidence(tmp_path):
    result = play(
        settings(
            tmp_path,
            clients=3,
            data__partition="niid1",
            data__niid_scale="adapt",
            **{"confidence.epochs": 5, "ensemble.epochs": 15},
        )
    )
    assert [client["classes"] for client in result.journal[0]["clients"]] == [[0], [1], [2]]
    assert result.summary["metrics"]["client_test_accuracy"] == pytest.approx(1 / 3)
    assert result.summary["accuracy"]["final"] > 0.6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda up: {"d": [0, 1, 7]}, "the schema has class 7; there are 0 to 2"),
        (lambda up: {"d": [0, 1, 1]}, "the schema has class 1 more than once"),
        (lambda up: {"d": [0, 1]}, "theta is float32[120, 3], expected float32[120, 2]"),
        (lambda up: {"theta": up.theta + 0.2}, "theta"),
        (lambda up: {"w": up.w - 2}, "w reaches from"),
    ],
)
def test_a_reply_that_cannot_be_is_refused_with_the_clients_name(tmp_path, change, reason: str):
    config = settings(tmp_path, min_replies=0.5)
    grid = Changing.by(Up, change)
    result = play(config, grid(config["clients"], config, workers=0))
    (failure,) = result.journal[1]["failures"]
    assert failure["k"] == 1 and reason in failure["reason"]
    assert result.journal[1]["replied"] == [0, 2, 3]


@pytest.mark.parametrize("rule", ["uhc-ce", "uhc-mf"])
def test_uhc_learns_where_classes_overlap(tmp_path, rule: str):
    result = play(
        settings(
            tmp_path,
            rounds=2,
            **{"confidence.kind": "uniform", "ensemble.aggregation": rule, "ensemble.epochs": 10},
        )
    )
    assert result.summary["accuracy"]["final"] > 0.6


def test_the_own_model_answers_in_global_classes(tmp_path):
    result = play(
        settings(
            tmp_path, clients=3, data__partition="niid1", data__niid_scale="adapt", train__epochs=5
        )
    )
    scores = result.journal[1]["scores"]
    assert [score["accuracy"] for score in scores] == [1.0, 1.0, 1.0]  # each holds one class


def test_masked_outputs_give_other_classes_no_probability():
    from common import models
    from common.models.masked import Masked

    net = models.build("mlp@0.25", (1, 8, 8), 2, seed=0)
    masked = Masked(net, [1, 4], 6)
    x = torch.zeros(3, 1, 8, 8)
    p = torch.softmax(masked(x), 1)
    assert p[:, [0, 2, 3, 5]].sum() == 0
    assert torch.allclose(p[:, [1, 4]], torch.softmax(net(x), 1))
