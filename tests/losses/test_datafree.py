"""The generator's losses, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from common.losses.generation import activation, information_entropy, one_hot

# softmax of these rows: (.8, .1, .1) and (.2, .6, .2)
LOGITS = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2]]).log()


def test_one_hot_is_the_surprise_at_ones_own_choice() -> None:
    # −(log .8 + log .6) / 2
    assert one_hot(LOGITS).item() == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)


def test_information_entropy_is_that_of_the_batch_not_of_its_rows() -> None:
    # the rows' mean is (.5, .35, .15)
    entropy = -sum(p * math.log(p) for p in (0.5, 0.35, 0.15))
    assert information_entropy(LOGITS, normalised=False).item() == pytest.approx(-entropy)
    normalised = information_entropy(LOGITS, normalised=True).item()
    assert normalised == pytest.approx(1 - entropy / math.log(3))


def test_balanced_classes_cost_nothing_and_a_single_class_costs_one() -> None:
    balanced = 40 * torch.eye(4)
    assert information_entropy(balanced, normalised=True).item() == pytest.approx(0, abs=1e-6)
    single = 40 * torch.eye(4)[[0, 0, 0]]
    assert information_entropy(single, normalised=True).item() == pytest.approx(1, abs=1e-6)


def test_activation_is_the_negative_l1_norm_or_the_mean() -> None:
    features = torch.tensor([[1.0, -2.0], [0.0, 5.0]])
    # norms 3 and 5, their mean 4; the mean of the four entries is 2
    assert activation(features, "sum").item() == -4.0
    assert activation(features, "mean").item() == -2.0


def test_descending_the_entropy_loss_balances_the_classes() -> None:
    logits = torch.tensor([[3.0, 0.0], [2.0, 0.0]], requires_grad=True)
    information_entropy(logits, normalised=True).backward()
    assert logits.grad is not None
    assert bool((logits.grad[:, 0] > 0).all()) and bool((logits.grad[:, 1] < 0).all())
