"""Centred kernel alignment."""

import pytest
import torch

from common.techniques.cka import alignment, centred_gram, pairwise
from common.training.seeds import stream


def cka(x: torch.Tensor, y: torch.Tensor) -> float:
    return alignment(centred_gram(x), centred_gram(y))


def features(name: str, n: int = 20, d: int = 6) -> torch.Tensor:
    return torch.randn(n, d, generator=stream(1, name), dtype=torch.float64)


def test_cka_by_hand() -> None:
    # x centred: −1, 0, 1; y centred: −1, 2, −1: orthogonal, so 0.
    x = torch.tensor([[0.0], [1.0], [2.0]])
    assert cka(x, torch.tensor([[0.0], [3.0], [0.0]])) == pytest.approx(0)
    # z centred: −1, −1, 2: ⟨x, z⟩ = 3, CKA = (x·z)² / (‖x‖² ‖z‖²) = 9 / (2 · 6)
    assert cka(x, torch.tensor([[0.0], [0.0], [3.0]])) == pytest.approx(0.75)
    # x = ±e1, ±e2; y keeps the first axis only: ‖YᵀX‖² = 4, ‖XᵀX‖ = √8, ‖YᵀY‖ = 2
    x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert cka(x, x[:, :1]) == pytest.approx(4 / (8**0.5 * 2))


def test_it_equals_the_covariance_form() -> None:
    x, y = features("x"), features("y", d=9)
    a, b = x - x.mean(0), y - y.mean(0)
    expected = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert cka(x, y) == pytest.approx(float(expected))


def test_rotation_scale_and_shift_change_nothing_but_another_linear_map_does() -> None:
    x, y = features("x"), features("y")
    rotation, _ = torch.linalg.qr(features("q", 6, 6))
    for changed in (x @ rotation, 3.5 * x, x + 7):
        assert cka(x, changed) == pytest.approx(1)
        assert cka(changed, y) == pytest.approx(cka(x, y))
    assert cka(x, x @ torch.diag(torch.tensor([9.0, 1, 1, 1, 1, 1]).double())) < 0.95


def test_pairs_are_symmetric_with_ones_on_the_diagonal() -> None:
    maps = features("m", 10, 12).view(10, 3, 2, 2)
    found = pairwise([centred_gram(x) for x in (maps, features("x", 10), features("y", 10))])
    assert torch.allclose(found, found.T) and torch.allclose(
        found.diagonal(), torch.ones(3).double()
    )
    assert found[0, 1] == pytest.approx(cka(maps, features("x", 10)))


def test_constant_features_are_like_nothing_and_one_sample_is_refused() -> None:
    assert cka(torch.ones(4, 2), features("x", 4)) == 0
    with pytest.raises(ValueError, match="it needs 2 or more"):
        cka(torch.ones(1, 2), torch.ones(1, 2))
