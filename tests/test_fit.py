"""The one training loop."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from common import fit as loop
from common.optimise import make

fit = partial(loop.fit, precision="fp32")


def test_one_step_of_gradient_descent_by_hand() -> None:
    w = nn.Parameter(torch.tensor([2.0]))
    # loss = (w·x − y)², x = 3, y = 4: gradient 2·3·(6 − 4) = 12; w ← 2 − 0.1·12 = 0.8
    optimizer = make([w], "sgd", 0.1)
    result = fit(
        optimizer,
        [(torch.tensor([3.0]), torch.tensor([4.0]))],
        lambda x, y: (w * x - y).square().sum(),
    )
    assert w.item() == pytest.approx(0.8)
    assert result == {"loss": pytest.approx(4.0), "steps": 1.0}


def test_momentum_by_hand() -> None:
    w = nn.Parameter(torch.tensor([1.0]))
    # loss = w: gradient 1; v = 1, then 1 + 0.5 = 1.5; w = 1 − 0.1 − 0.15 = 0.75
    fit(make([w], "sgd", 0.1, momentum=0.5), [(w.detach(),)] * 2, lambda _: w.sum())
    assert w.item() == pytest.approx(0.75)


def test_clipping_bounds_the_whole_gradient() -> None:
    w = nn.Parameter(torch.zeros(2))
    # gradient (3, 4) of norm 5 becomes (0.6, 0.8)
    fit(make([w], "sgd", 1.0), [(torch.tensor([3.0, 4.0]),)], lambda g: (w * g).sum(), clip=1.0)
    assert w.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)


def test_two_learning_rates_in_one_loop() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.2}]
    fit(make(groups, "sgd", 1.0), [(torch.ones(1),)], lambda x: (a + b).sum())
    assert (a.item(), b.item()) == pytest.approx((-0.1, -0.2))


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(ValueError, match="no batch to train on"):
        fit(make([nn.Parameter(torch.zeros(1))], "sgd", 1.0), [], lambda: torch.zeros(()))


def test_a_diverged_model_is_an_error() -> None:
    w = nn.Parameter(torch.tensor([1.0]))
    with pytest.raises(FloatingPointError, match="diverged"):
        fit(make([w], "sgd", 1.0), [(torch.tensor([float("nan")]),)], lambda x: (w * x).sum())
