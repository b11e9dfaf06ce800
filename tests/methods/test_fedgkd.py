"""FedGKD: FedAvg with the past for a teacher."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from common import tree
from common.methods.fedgkd import Up
from server_app.method import Ups
from server_app.methods.fedgkd import FedGKD
from tests.support.tiny import TinyRun

Run = Callable[..., TinyRun]


def test_with_gamma_zero_it_is_fedavg_bit_for_bit(run: Run) -> None:
    fedgkd = run(method="fedgkd", fedgkd__gamma=0.0, fedgkd__buffer=1)
    fedavg = run(method="fedavg")
    assert fedgkd.weights == fedavg.weights
    assert [e["metrics"] for e in fedgkd.journal[1:]] == [e["metrics"] for e in fedavg.journal[1:]]


def test_until_the_buffer_is_full_it_is_fedavg(run: Run) -> None:
    fedavg = run(method="fedavg", rounds=2)
    waiting = run(method="fedgkd", rounds=2, fedgkd__gamma=1.0, fedgkd__buffer=2)
    assert waiting.weights == fedavg.weights
    eager = run(
        method="fedgkd", rounds=2, fedgkd__gamma=1.0, fedgkd__buffer=2, fedgkd__wait_full=False
    )
    assert eager.weights != fedavg.weights


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


def test_the_square_of_the_temperature_is_a_switch(run: Run) -> None:
    settings = {"method": "fedgkd", "fedgkd__buffer": 1, "fedgkd__temperature": 2.0}
    plain = run(**settings, fedgkd__gamma=0.8)
    squared = run(**settings, fedgkd__gamma=0.2, fedgkd__t_squared=True)
    assert plain.weights == squared.weights  # 0.8 / 2 · 1 = 0.2 / 2 · 2²
