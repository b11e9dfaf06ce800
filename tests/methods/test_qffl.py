"""q-FFL: whoever does worse weighs more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common.methods.qffl import Up
from server_app.method import Ups
from tests.support.halves import client, server
from tests.support.tiny import Run


def step(q: float, lr: float, w: float, ups: list[tuple[float, float]]) -> float:
    """The server's step on one weight; ``ups``: each client's (weight, loss)."""
    qffl = server(method="qffl", qffl__q=q, train__lr=lr)
    qffl.net, qffl.w = torch.nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[w]])}
    sent = [
        (client(k), Up(w={"weight": torch.tensor([[v]])}, loss=loss))
        for k, (v, loss) in enumerate(ups)
    ]
    qffl.step(1, Ups.of(sent))
    return float(qffl.w["weight"])


def test_a_step_by_hand() -> None:
    # q = 1, L = 1/0.5 = 2, w = 1, w_1 = 0 with F = 1, w_2 = 2 with F = 3.
    # Δw = (2, −2), Δ = (2, −6), h = 1·‖2‖² + 2·1 = 6 and 4 + 2·3 = 10.
    # w ← 1 − (2 − 6) / 16 = 1.25
    assert step(1.0, 0.5, 1.0, [(0.0, 1.0), (2.0, 3.0)]) == pytest.approx(1.25)


def test_a_larger_q_leans_to_the_client_with_the_larger_loss() -> None:
    results = [step(q, 0.5, 0.0, [(-1.0, 0.5), (1.0, 2.0)]) for q in (0.0, 0.5, 1.0)]
    assert results[0] == 0.0 < results[1] < results[2]


def test_a_loss_of_zero_is_no_accident() -> None:
    assert step(0.5, 0.1, 1.0, [(0.0, 0.0), (0.0, 0.0)]) == pytest.approx(1.0, abs=1e-3)


def test_the_loss_sent_is_that_of_the_model_received(run: Run, monkeypatch: Any) -> None:
    from client_app.methods import qffl
    from common.task import evaluate

    seen = []
    train = qffl.QFFL.train

    def watching(self: Any, down: Any) -> Any:
        up = train(self, down)
        p = self.participant
        net = p.model(p.global_spec, down.w)
        seen.append((up.loss, evaluate(net, *p.train_set, p.task).loss))
        return up

    monkeypatch.setattr(qffl.QFFL, "train", watching)
    run(method="qffl", rounds=1)
    assert len(seen) == 4 and all(sent == expected for sent, expected in seen)
