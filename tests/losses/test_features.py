"""Gradient alleviation (FedIN, section 4.2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.losses.gradients import alleviated, slope


def test_agreeing_gradients_leave_g_in_alone() -> None:
    g_in, g_local = [torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 0.0])]
    (z,) = alleviated(g_in, g_local)  # b = 3 ≥ 0
    assert z.tolist() == [1.0, 2.0]


def test_opposed_gradients_by_hand() -> None:
    # a = 2² + 0 + 1² = 5, b = 2·(−3) + 0·4 + 1·1 = −5, Z = G_IN + 1 · G_local
    g_in = [torch.tensor([-3.0, 4.0]), torch.tensor([[1.0]])]
    g_local = [torch.tensor([2.0, 0.0]), torch.tensor([[1.0]])]
    first, second = alleviated(g_in, g_local)
    assert first.tolist() == [-1.0, 4.0] and second.tolist() == [[2.0]]


def test_no_local_gradient_leaves_g_in_alone() -> None:
    (z,) = alleviated([torch.tensor([-1.0])], [torch.tensor([0.0])])
    assert z.tolist() == [-1.0]


@pytest.mark.parametrize("seed", range(8))
def test_equation_13_solves_equation_10(seed: int) -> None:
    rng = np.random.default_rng(seed)
    g_in, g_local = rng.normal(size=(2, 6))
    if seed % 2:  # make sure that half of them are opposed
        g_in = g_in - 2 * g_local
    z = alleviated([torch.tensor(g_in)], [torch.tensor(g_local)])[0].numpy()
    assert z @ g_local >= -1e-9
    # z is the nearest of a convex set if no way into the set leads towards g_in
    others = rng.normal(size=(1000, 6)) * 10
    others -= np.minimum(others @ g_local, 0)[:, None] * g_local / (g_local @ g_local)
    assert (others @ g_local >= -1e-9).all()
    assert ((others - z) @ (g_in - z) <= 1e-9).all()


def test_a_value_gets_the_gradient_it_is_given() -> None:
    w = torch.tensor([2.0, -1.0], requires_grad=True)
    loss = torch.tensor(7.0) + slope([torch.tensor([3.0, 4.0])], [w])
    assert loss.item() == 7.0
    (gradient,) = torch.autograd.grad(loss, [w])
    assert gradient.tolist() == [3.0, 4.0]
