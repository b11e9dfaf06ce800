"""DL-MH: the identity with DL-SH, schemas, UHC, single classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
