"""ODIN's score on a network small enough to follow by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from common.ensemble import odin_score, rescaled


def linear() -> nn.Module:
    """Logits (x, −x) of a single pixel."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    return net.eval()


def test_the_step_makes_the_largest_softmax_larger():
    x = torch.tensor([[[[0.5]]], [[[-0.5]]]])
    # The pixel moves away from 0 by ε/std = 0.1: softmax of (0.6, −0.6)/2 is 1/(1 + e^−0.6).
    score = odin_score(linear(), x, T=2.0, epsilon=0.05, std=(0.5,))
    assert score.tolist() == pytest.approx([1 / (1 + math.exp(-0.6))] * 2)


def test_without_a_step_it_is_the_largest_softmax_at_t():
    score = odin_score(linear(), torch.tensor([[[[0.5]]]]), T=1.0, epsilon=0.0, std=(1.0,))
    assert score.tolist() == pytest.approx([1 / (1 + math.exp(-1.0))])


def test_it_leaves_no_gradient_behind():
    net = linear()
    odin_score(net, torch.tensor([[[[0.5]]]]), T=1.0, epsilon=0.1, std=(1.0,))
    assert all(p.grad is None for p in net.parameters())


def test_scores_that_nearly_agree_are_stretched():
    assert rescaled(torch.tensor([0.1001, 0.1002, 0.1003])).tolist() == pytest.approx(
        [0, 0.5, 1], abs=1e-3
    )
    assert rescaled(torch.full((3,), 0.1)).tolist() == [0.5, 0.5, 0.5]
