"""FedProx."""

from __future__ import annotations

import pytest
import torch

from common.losses.gradients import proximal
from tests.support.tiny import Run


def test_the_proximal_term_by_hand() -> None:
    named = [("a", torch.tensor([3.0, 0.0])), ("b", torch.tensor([[1.0]]))]
    reference = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[1.0]])}
    # ½ (2² + 1² + 0²) = 2.5
    assert proximal(named, reference).item() == 2.5


def test_its_gradient_is_the_distance() -> None:
    w = torch.tensor([3.0, -1.0], requires_grad=True)
    proximal([("w", w)], {"w": torch.tensor([1.0, 1.0])}).backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, -2.0]


def test_a_larger_mu_stays_nearer_to_the_global_model(run: Run) -> None:

    from common.models import build
    from common.tree import parameters_only, snapshot

    first = build("mlp@0.25", (1, 8, 8), 3, seed=1, name=("init", "global"))
    start = snapshot(first)

    def distance(mu: float) -> float:
        end = run(method="fedprox", rounds=1, fedprox__mu=mu).model
        return sum(float((end[n] - start[n]).square().sum()) for n in parameters_only(first))

    near, far = distance(10.0), distance(0.01)
    assert near < 0.5 * far and far == pytest.approx(far)
