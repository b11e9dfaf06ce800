"""What a student descends when teachers answer noise, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from common.losses.distillation import kl
from server_app.distil.noise import largest, weighted

A = torch.tensor([[0.5, 0.5]]).log()
B = torch.tensor([[0.8, 0.2]]).log()


def test_every_teacher_is_heard_with_its_weight() -> None:
    # KL((.8, .2) ‖ (.5, .5)) = .8 log 1.6 + .2 log .4, and KL of equals is 0
    expected = 0.25 * (0.8 * math.log(1.6) + 0.2 * math.log(0.4))
    loss = weighted(kl, [0.75, 0.25], 1.0)([A, B], torch.zeros(1, 2))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_largest_opinion_is_heard_alone() -> None:
    # max is (.8, .5), by its sum (8/13, 5/13), against (.5, .5)
    p, q = 8 / 13, 5 / 13
    loss = largest("sum", 1.0)([A, B], torch.zeros(1, 2))
    assert loss.item() == pytest.approx(p * math.log(2 * p) + q * math.log(2 * q), rel=1e-4)
