"""Predictions of clients combined: confidences, ODIN, the schema of classes, UHC."""

import math

import pytest
import torch
from torch import nn

from common.models.masked import narrowed, widened
from common.techniques import ensemble

Q = torch.tensor([[0.5, 0.2, 0.2, 0.1]])
OVERLAPPING = torch.tensor([[True, True, True, False], [False, False, True, True]])


@pytest.mark.parametrize(
    ("w", "T", "space", "expected"),
    [
        ([[0.9, 0.5], [0.7, 0.5]], 0.1, "prob", [[0.880797, 0.5], [0.119203, 0.5]]),  # 1/(1 + e⁻²)
        ([[1.0], [0.0]], 1.0, "prob", [[0.731059], [0.268941]]),  # e : 1
        ([[0.8], [0.5]], 1.0, "logit", [[0.8], [0.2]]),  # odds 4 : 1
        ([[1.0], [0.0]], 1.0, "logit", [[0.999996], [4e-6]]),  # finite
    ],
)
def test_weights_are_a_softmax_over_clients_of_w_over_t(w, T: float, space: str, expected):
    W = ensemble.client_weights(torch.tensor(w), T, space)
    torch.testing.assert_close(W, torch.tensor(expected), rtol=0, atol=1e-6)


def test_the_weighted_sum_is_equation_1_and_the_literal_product_ignores_the_confidences():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    y = ensemble.weighted_sum([a, b], torch.tensor([[0.75], [0.25]]))
    assert y.tolist() == [[0.875, 0.125]]
    for weights in ([[0.9], [0.1]], [[0.2], [0.8]]):  # mean [.75, .25] times 1/2
        assert ensemble.literal_product([a, b], torch.tensor(weights)).tolist() == [[0.375, 0.125]]


def linear() -> nn.Module:
    """Logits (x, −x) of a single pixel."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    return net.eval()


def test_the_step_makes_the_largest_softmax_larger_and_leaves_no_gradient():
    net, x = linear(), torch.tensor([[[[0.5]]], [[[-0.5]]]])
    # The pixel moves away from 0 by ε/std = 0.1: softmax of (0.6, −0.6)/2 is 1/(1 + e^−0.6).
    score = ensemble.odin_score(net, x, T=2.0, epsilon=0.05, std=(0.5,))
    assert score.tolist() == pytest.approx([1 / (1 + math.exp(-0.6))] * 2)
    score = ensemble.odin_score(net, x[:1], T=1.0, epsilon=0.0, std=(1.0,))
    assert score.tolist() == pytest.approx([1 / (1 + math.exp(-1.0))]), "without a step"
    assert all(p.grad is None for p in net.parameters())


def test_scores_that_nearly_agree_are_stretched():
    near = ensemble.rescaled(torch.tensor([0.1001, 0.1002, 0.1003]))
    assert near.tolist() == pytest.approx([0, 0.5, 1], abs=1e-3)
    assert ensemble.rescaled(torch.full((3,), 0.1)).tolist() == [0.5, 0.5, 0.5]


def test_figure_4_client_1_maps_classes_0_3_4_7_to_0_1_2_3():
    assert ensemble.to_local(torch.tensor([7, 0, 4, 3]), [0, 3, 4, 7]).tolist() == [3, 0, 2, 1]
    theta = torch.tensor([[0.2, 0.5, 0.3]])
    assert ensemble.scatter(theta, [4, 0, 2], 5).tolist() == [pytest.approx([0.5, 0, 0.3, 0, 0.2])]


def test_the_nearest_class_is_the_best_among_the_clients_own():
    theta = torch.tensor([[0.6, 0.1, 0.3], [0.1, 0.5, 0.4]])
    assert ensemble.nearest_class(theta, [1, 2]).tolist() == [1, 0]
    # Algorithm 5 as printed starts from θ[k][0] = 0.9: max − θ = 0, which no own class undercuts,
    # so it would keep d[0] = 1 although class 2 is nearer.
    assert ensemble.nearest_class(torch.tensor([[0.9, 0.02, 0.08]]), [1, 2]).tolist() == [1]
    every = torch.rand(50, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ensemble.nearest_class(every, range(6)), every.argmax(1))


@pytest.mark.parametrize(
    ("d", "message"),
    [
        ([], "names no class"),
        ([0, 10], "has class 10; there are 0 to 9"),
        ([-1], "has class -1"),
        ([3, 1, 3], "has class 3 more than once"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(d: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        ensemble.check_schema(d, 10)


@pytest.mark.parametrize(
    ("classes", "weight", "bias"),
    [
        ([1, 3], [0, 1, 0, 2], [0, 3, 0, 4]),
        ([2], [0, 0, 1, 0], [0, 0, 3, 0]),  # the head of a single class has two rows, one counts
    ],
)
def test_a_widened_head_keeps_the_clients_rows_and_narrows_back(classes, weight, bias):
    own = {"head.weight": torch.tensor([[1.0], [2.0]]), "head.bias": torch.tensor([3.0, 4.0])}
    own["conv.weight"] = torch.tensor([9.0])
    fresh = {"head.weight": torch.zeros(4, 1), "head.bias": torch.zeros(4)}
    wide = widened(own, fresh, classes)
    assert wide["head.weight"].flatten().tolist() == weight and wide["head.bias"].tolist() == bias
    again = narrowed(wide, classes)
    expected = own if len(classes) > 1 else {**own, "head.bias": torch.tensor([3.0, 3.0])}
    for name in ("head.bias", "conv.weight"):
        assert torch.equal(again[name], expected[name])


def parts(q: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """p_i(l) = q(l) / Σ_{k∈L_i} q(k)."""
    own = q[None] * held[:, None, :]
    return own / own.sum(2, keepdim=True)


def test_the_whole_is_recovered_from_overlapping_parts():
    told = parts(Q, OVERLAPPING)
    for q in (
        ensemble.by_cross_entropy(told, OVERLAPPING, steps=3000, lr=1.0),
        ensemble.by_factorisation(told, OVERLAPPING, steps=200),
    ):
        assert q[0].tolist() == pytest.approx(Q[0].tolist(), abs=1e-3)


def test_one_step_of_cross_entropy_by_hand():
    held = torch.tensor([[True, True]])
    p = torch.tensor([[[0.8, 0.2]]])
    q = ensemble.by_cross_entropy(p, held, steps=1, lr=1.0)
    # softmax(0, 0) − p = (−0.3, 0.3), so u = (0.3, −0.3)
    assert q[0].tolist() == pytest.approx(torch.softmax(torch.tensor([0.3, -0.3]), 0).tolist())


def test_without_a_shared_class_the_factorisation_gives_each_client_the_same_mass():
    held = torch.tensor([[True, True, False, False], [False, False, True, True]])
    p = torch.tensor([[[0.9, 0.1, 0, 0]], [[0, 0, 0.5, 0.5]]])
    q = ensemble.by_factorisation(p, held, steps=50)
    assert q[0].tolist() == pytest.approx([0.45, 0.05, 0.25, 0.25])
    peaked = ensemble.by_cross_entropy(p, held, steps=50, lr=1.0)
    assert float(peaked[0, :2].sum()) > 0.6, "cross-entropy prefers the more peaked client"


def test_a_class_that_nobody_holds_gets_nothing():
    held = torch.tensor([[True, True, False]])
    p = torch.tensor([[[0.9, 0.1, 0.0]]])
    assert ensemble.by_cross_entropy(p, held, 50, 1.0)[0, 2] == 0
    assert ensemble.by_factorisation(p, held, 50)[0, 2] == 0
