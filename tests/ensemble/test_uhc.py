"""UHC's two estimates of a distribution that several clients see in parts."""

from __future__ import annotations

import pytest
import torch

from common.ensemble import by_cross_entropy, by_factorisation

Q = torch.tensor([[0.5, 0.2, 0.2, 0.1]])
OVERLAPPING = torch.tensor([[True, True, True, False], [False, False, True, True]])


def parts(q: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """p_i(l) = q(l) / Σ_{k∈L_i} q(k)."""
    own = q[None] * held[:, None, :]
    return own / own.sum(2, keepdim=True)


def test_cross_entropy_recovers_the_whole_from_overlapping_parts():
    q = by_cross_entropy(parts(Q, OVERLAPPING), OVERLAPPING, steps=3000, lr=1.0)
    assert q[0].tolist() == pytest.approx(Q[0].tolist(), abs=1e-3)


def test_the_factorisation_recovers_the_whole_from_overlapping_parts():
    q = by_factorisation(parts(Q, OVERLAPPING), OVERLAPPING, steps=200)
    assert q[0].tolist() == pytest.approx(Q[0].tolist(), abs=1e-4)


def test_one_step_of_cross_entropy_by_hand():
    held = torch.tensor([[True, True]])
    p = torch.tensor([[[0.8, 0.2]]])
    q = by_cross_entropy(p, held, steps=1, lr=1.0)
    # softmax(0, 0) − p = (−0.3, 0.3), so u = (0.3, −0.3)
    assert q[0].tolist() == pytest.approx(torch.softmax(torch.tensor([0.3, -0.3]), 0).tolist())


def test_without_a_shared_class_the_factorisation_gives_each_client_the_same_mass():
    held = torch.tensor([[True, True, False, False], [False, False, True, True]])
    p = torch.tensor([[[0.9, 0.1, 0, 0]], [[0, 0, 0.5, 0.5]]])
    q = by_factorisation(p, held, steps=50)
    assert q[0].tolist() == pytest.approx([0.45, 0.05, 0.25, 0.25])


def test_without_a_shared_class_cross_entropy_prefers_whoever_is_more_peaked():
    held = torch.tensor([[True, True, False, False], [False, False, True, True]])
    p = torch.tensor([[[0.9, 0.1, 0, 0]], [[0, 0, 0.5, 0.5]]])
    q = by_cross_entropy(p, held, steps=50, lr=1.0)
    assert float(q[0, :2].sum()) > 0.6


def test_a_class_that_nobody_holds_gets_nothing():
    held = torch.tensor([[True, True, False]])
    p = torch.tensor([[[0.9, 0.1, 0.0]]])
    assert by_cross_entropy(p, held, 50, 1.0)[0, 2] == 0
    assert by_factorisation(p, held, 50)[0, 2] == 0
