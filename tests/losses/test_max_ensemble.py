"""The max-ensemble and its divergence, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from common.losses.distillation import kl, kl_from, max_ensemble

# softmax of these rows: (.5, .25, .25) and (.2, .2, .6)
A = torch.tensor([[0.5, 0.25, 0.25]]).log()
B = torch.tensor([[0.2, 0.2, 0.6]]).log()


def test_without_a_norm_it_is_the_largest_probability_of_each_class() -> None:
    assert torch.allclose(max_ensemble([A, B], "none"), torch.tensor([[0.5, 0.25, 0.6]]))


def test_by_its_sum_it_is_a_distribution() -> None:
    # .5 + .25 + .6 = 1.35
    expected = torch.tensor([[0.5, 0.25, 0.6]]) / 1.35
    assert torch.allclose(max_ensemble([A, B], "sum"), expected)


def test_by_a_softmax_it_is_flatter() -> None:
    e = [math.exp(v) for v in (0.5, 0.25, 0.6)]
    expected = torch.tensor([[v / sum(e) for v in e]])
    assert torch.allclose(max_ensemble([A, B], "softmax"), expected)


def test_a_temperature_divides_the_logits() -> None:
    # softmax(log p / 2) ∝ √p: (√.5, .5, .5) / (√.5 + 1)
    root = math.sqrt(0.5)
    expected = torch.tensor([[root, 0.5, 0.5]]) / (root + 1)
    assert torch.allclose(max_ensemble([A], "sum", 2.0), expected)


@pytest.mark.parametrize("norm", ["sum", "none"])
def test_of_one_teacher_it_is_the_teacher(norm: str) -> None:
    assert torch.allclose(max_ensemble([B], norm), torch.tensor([[0.2, 0.2, 0.6]]))


def test_its_divergence_from_a_uniform_student() -> None:
    # Σ m log(m / (1/3)) for m = (.5, .25, .25): .5 log 1.5 + .5 log .75
    expected = 0.5 * math.log(1.5) + 0.5 * math.log(0.75)
    got = kl_from(torch.tensor([[0.5, 0.25, 0.25]]), torch.zeros(1, 3))
    assert got.item() == pytest.approx(expected, rel=1e-6)


def test_the_divergence_from_one_teacher_is_the_usual_one() -> None:
    draw = torch.Generator().manual_seed(0)
    teacher, student = torch.randn(2, 5, 4, generator=draw)
    got = kl_from(max_ensemble([teacher], "sum", 3.0), student, 3.0)
    assert got.item() == pytest.approx(kl(teacher, student, 3.0).item(), rel=1e-5)


def test_the_student_s_gradient_is_softmax_minus_targets_over_n() -> None:
    student = torch.zeros(2, 2, requires_grad=True)
    kl_from(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), student).backward()
    expected = torch.tensor([[0.5 - 0.75, 0.5 - 0.25], [0.5 - 1, 0.5]]) / 2
    assert torch.allclose(student.grad, expected)


def test_a_certain_teacher_gives_a_finite_loss() -> None:
    certain = torch.tensor([[1000.0, 0.0]])
    assert kl_from(max_ensemble([certain], "sum"), torch.zeros(1, 2)).item() == pytest.approx(
        math.log(2)
    )
