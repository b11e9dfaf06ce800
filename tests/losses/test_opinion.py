"""What several teachers say together: logits (2, 0) and (0, 1), by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from common.losses.distillation import kl, kl_from, max_ensemble, opinion

TWO = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])]


@pytest.mark.parametrize(
    ("how", "T", "first"),
    [
        ("logits", 1.0, 0.622459),  # softmax of (1, .5)
        ("logits", 2.0, 0.562177),
        ("mean", 1.0, 0.574869),  # of .880797 and .268941
        ("mean", 2.0, 0.554300),  # of .731059 and .377541
        ("max", 1.0, 0.546449),  # .880797 / (.880797 + .731059)
        ("vote", 1.0, 0.5),
    ],
)
def test_by_hand(how: str, T: float, first: float) -> None:
    found = opinion(iter(TWO), how, T)  # type: ignore[arg-type]
    assert found[0].tolist() == pytest.approx([first, 1 - first], abs=1e-6)


def test_the_largest_opinion_is_that_of_distillation_on_noise() -> None:
    teachers = list(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(opinion(teachers, "max", 2.0), max_ensemble(teachers, "sum", 2.0))


def test_the_mean_of_the_losses_has_the_gradient_of_the_mean_of_the_softmaxes() -> None:
    draw = torch.Generator().manual_seed(1)
    teachers = list(torch.randn(3, 5, 4, generator=draw))
    students = [torch.randn(5, 4, generator=draw, requires_grad=True) for _ in range(2)]
    apart = []
    for z in students:
        losses = torch.stack([kl(y, z, 2.0) for y in teachers]).mean()
        ours = kl_from(opinion(teachers, "mean", 2.0), z, 2.0)
        (a,), (b,) = torch.autograd.grad(losses, z), torch.autograd.grad(ours, z)
        torch.testing.assert_close(a, b)
        apart.append(float(losses.detach() - ours.detach()))
    assert apart[0] == pytest.approx(apart[1], abs=1e-6) and apart[0] > 0


def test_one_alone_is_heard_as_it_is() -> None:
    z = torch.tensor([[0.3, -1.0, 2.0]])
    for how in ("logits", "mean", "max"):
        torch.testing.assert_close(opinion([z], how), F.softmax(z, 1))  # type: ignore[arg-type]
    assert opinion([z], "vote").tolist() == [[0, 0, 1]]
