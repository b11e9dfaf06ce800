"""FedFTG's losses, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from common.losses import generation

TEACHER = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
STUDENT = torch.tensor([[1.0, 0.0], [1.0, -3.0]])
WEIGHTS = torch.tensor([0.5, 0.25])


def test_disagreement_is_the_weighted_mean_distance_of_logits() -> None:
    # rows: mean(1, 0) = .5 and mean(0, 4) = 2; (.5 · .5 + .25 · 2) / 2 = .375
    assert generation.disagreement(TEACHER, STUDENT, WEIGHTS).item() == pytest.approx(0.375)


def test_cross_entropy_weighs_each_sample() -> None:
    # CE((1, 1), 0) = log 2 and CE((0, 0), 1) = log 2: (.5 + .25) log 2 / 2
    logits = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    got = generation.weighted_cross_entropy(logits, torch.tensor([0, 1]), WEIGHTS)
    assert got.item() == pytest.approx(0.375 * math.log(2))


def test_soft_cross_entropy_weighs_each_sample() -> None:
    # a uniform student is log 2 away from every teacher
    got = generation.weighted_soft_cross_entropy(TEACHER, torch.zeros(2, 2), WEIGHTS)
    assert got.item() == pytest.approx(0.375 * math.log(2))


def test_diversity_of_two_images() -> None:
    # distances: images mean|(0, 0) − (1, 3)| = 2, latents mean((0 − 2)²) = 4; two of the four pairs
    # are unlike: exp(−(2 · 4 · 2) / 4) = exp(−4)
    x, z = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0], [2.0]])
    assert generation.diversity(z, x).item() == pytest.approx(math.exp(-4))


def test_diversity_of_equal_images_is_1() -> None:
    assert generation.diversity(torch.arange(6.0).view(3, 2), torch.ones(3, 1, 2, 2)).item() == 1.0
