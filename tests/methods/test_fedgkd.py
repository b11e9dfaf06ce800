"""FedGKD: FedAvg with the past for a teacher."""

from __future__ import annotations

import pytest
import torch

from common import tree
from common.methods.fedgkd import Up
from server_app.method import Ups
from server_app.methods.fedgkd import FedGKD
from tests.support.tiny import Run


def test_the_teacher_is_the_mean_of_the_last_models(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[dict[str, torch.Tensor]] = []
    teachers = []
    step, down = FedGKD.step, FedGKD.down

    def stepping(self: FedGKD, t: int, ups: Ups[Up]) -> dict[str, float]:
        metrics = step(self, t, ups)
        models.append(self.w)
        return metrics

    def sending(self: FedGKD, t: int) -> object:
        sent = down(self, t)
        teachers.append(sent.teacher)
        return sent

    monkeypatch.setattr(FedGKD, "step", stepping)
    monkeypatch.setattr(FedGKD, "down", sending)
    run(method="fedgkd", rounds=4, fedgkd__buffer=2)
    assert teachers[0] is None and teachers[1] is None
    for t in (2, 3):
        expected = tree.mean(models[t - 2 : t], [1, 1])
        assert all(torch.equal(teachers[t][name], expected[name]) for name in expected)
