"""Several classifiers as one: logits (2, 0) and (0, 1), by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from common.models.classifier import Classifier
from common.models.ensemble import Ensemble


class Constant(Classifier):
    """The same logits for every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.head = nn.Linear(1, len(logits))
        self.head.weight.data.zero_()
        self.head.bias.data = torch.tensor(logits, dtype=torch.float32)

    def features(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 1)


X = torch.zeros(3, 1, 2, 2)


def both(weights: list[float] | None = None, kind: str = "logits") -> Tensor:
    two = Ensemble([Constant(2, 0), Constant(0, 1)], kind)  # type: ignore[arg-type]
    if weights is not None:
        two.weights.copy_(torch.tensor(weights))
    answer: Tensor = two(X)
    return answer


def test_logits_are_averaged_with_weights() -> None:
    assert torch.equal(both(), torch.tensor([[1.0, 0.5]]).expand(3, 2))
    assert torch.equal(both([3.0, 1.0]), torch.tensor([[1.5, 0.25]]).expand(3, 2))
    assert torch.equal(both([0.0, 1.0]), torch.tensor([[0.0, 1.0]]).expand(3, 2))


def test_or_probabilities_are() -> None:
    p, q = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))  # of class 0
    found = both(kind="softmax").exp()
    assert found[0].tolist() == pytest.approx([(p + q) / 2, 1 - (p + q) / 2])
    assert both([3.0, 1.0], "softmax").exp()[0, 0].item() == pytest.approx((3 * p + q) / 4)
    assert both([0.0, 1.0], "softmax").exp()[0, 0].item() == pytest.approx(q)


def test_the_two_can_choose_differently() -> None:
    """One that is very sure outweighs two in the logits, not in the probabilities."""
    nets = [Constant(9, 0), Constant(0, 2), Constant(0, 2)]
    assert Ensemble(nets)(X).argmax(1).tolist() == [0, 0, 0]
    assert Ensemble(nets, kind="softmax")(X).argmax(1).tolist() == [1, 1, 1]


def test_one_alone_is_itself_and_its_networks_are_frozen() -> None:
    net = Constant(0.3, 0.1)
    alone = Ensemble([net.train()])
    assert torch.equal(alone(X), net(X)) and len(alone) == 1
    assert not net.training and not any(p.requires_grad for p in net.parameters())
