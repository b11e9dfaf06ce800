"""FedGen's diversity term, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from common.losses.generation import diversity


def test_diversity_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    features = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 4.0]])
    # d(z) = 4/2 = 2, d(f) = 3/3 = 1 for the two pairs i ≠ j of four: the mean is 2·2/4 = 1
    assert diversity(z, features).item() == pytest.approx(math.exp(-1.0))


def test_equal_outputs_are_worst() -> None:
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert diversity(z, torch.ones(5, 4)).item() == 1.0
