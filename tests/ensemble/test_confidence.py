"""DL-SH's weights and sums, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from common.ensemble import client_weights, literal_product, weighted_sum


def test_weights_are_a_softmax_over_clients_of_w_over_t():
    w = torch.tensor([[0.9, 0.5], [0.7, 0.5]])
    W = client_weights(w, T=0.1)
    first = 1 / (1 + math.exp(-2))  # (0.9 − 0.7) / 0.1 = 2
    assert W.flatten().tolist() == pytest.approx([first, 0.5, 1 - first, 0.5], abs=1e-6)


def test_at_t_one_the_surest_client_weighs_at_most_e_times_the_least_sure():
    W = client_weights(torch.tensor([[1.0], [0.0]]), T=1.0)
    assert float(W[0] / W[1]) == pytest.approx(math.e, rel=1e-6)


def test_in_logit_space_at_t_one_weights_are_proportional_to_the_odds():
    W = client_weights(torch.tensor([[0.8], [0.5]]), T=1.0, space="logit")
    assert W.flatten().tolist() == pytest.approx([4 / 5, 1 / 5], abs=1e-6)  # odds 4 : 1


def test_the_logit_of_a_certain_client_stays_finite():
    assert torch.isfinite(client_weights(torch.tensor([[1.0], [0.0]]), 1.0, "logit")).all()


def test_the_weighted_sum_is_equation_1():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    y = weighted_sum([a, b], torch.tensor([[0.75], [0.25]]))
    assert y.tolist() == [[0.875, 0.125]]


def test_the_literal_product_ignores_the_confidences():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    one = literal_product([a, b], torch.tensor([[0.9], [0.1]]))
    two = literal_product([a, b], torch.tensor([[0.2], [0.8]]))
    assert one.tolist() == two.tolist() == [[0.375, 0.125]]  # mean [.75, .25] times 1/2
