"""FedNTD: what the global model says of the classes that are not the label."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from common.losses.distillation import not_true
from tests.support.tiny import Run

Z = torch.tensor([[1.0, 2.0, 0.0]])
Z_G = torch.tensor([[0.0, 1.0, 3.0]])
Y = torch.tensor([1])


def test_the_loss_by_hand() -> None:
    assert F.cross_entropy(Z, Y).item() == pytest.approx(0.40761, abs=1e-5)
    # without entry 1: KL(σ(0, 3) ‖ σ(1, 0))
    assert not_true(Z_G, Z, Y).item() == pytest.approx(1.07497, abs=1e-5)
    assert 4 * not_true(Z_G, Z, Y, 2.0).item() == pytest.approx(1.63125, abs=1e-5)


def test_it_says_nothing_about_the_labels_own_logit() -> None:
    z, y = (
        torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3, 0]),
    )
    student = z.clone().requires_grad_()
    not_true(z.flip(0), student, y).backward()
    assert student.grad is not None
    own = student.grad.gather(1, y[:, None])
    assert torch.equal(own, torch.zeros(5, 1)) and bool((student.grad != 0).any())


def test_between_two_classes_nothing_is_left_to_say() -> None:
    assert not_true(Z_G[:, :2], Z[:, :2], Y).item() == 0.0


def test_the_square_of_the_temperature_stands_before_the_term(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client_app.methods import fedntd

    flat = run(method="fedntd", fedntd__beta=4.0)
    monkeypatch.setattr(fedntd, "not_true", lambda a, b, y, T: not_true(a, b, y, 1.0))
    assert run(method="fedntd", fedntd__temperature=2.0).weights == flat.weights
