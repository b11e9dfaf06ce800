"""Algebra on state dicts, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch

from common import tree


def test_a_weighted_mean_by_hand() -> None:
    states = [{"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([3.0, 0.0])}]
    # (1·1 + 3·3)/4 = 2.5 and (1·4 + 3·0)/4 = 1
    assert tree.mean(states, [1, 3])["w"].tolist() == [2.5, 1.0]


def test_counters_keep_the_largest_and_stay_integers() -> None:
    states = [{"n": torch.tensor(3)}, {"n": torch.tensor(8)}]
    assert tree.mean(states, [1, 1])["n"].item() == 8
    assert tree.mean(states, [1, 1])["n"].dtype == torch.int64


def test_equal_states_average_to_themselves_bit_for_bit() -> None:
    state = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(tree.mean([state] * 7, [3, 1, 4, 1, 5, 9, 2])["w"], state["w"])


@pytest.mark.parametrize("weights", [[0, 0], [1], []])
def test_weights_that_cannot_average_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot average|zip"):
        tree.mean([{"w": torch.ones(1)}] * 2, weights)


GOOD = {"w": torch.ones(2, 3), "bn.running_var": torch.ones(2), "n": torch.tensor(1)}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"w": None}, "lacks 1 entries, first 'w'"),
        ({"more": torch.ones(1)}, "1 unknown entries, first 'more'"),
        ({"w": torch.ones(3, 2)}, "'w' is float32[3, 2], expected float32[2, 3]"),
        ({"w": torch.ones(2, 3).double()}, "'w' is float64[2, 3], expected float32[2, 3]"),
        ({"w": torch.full((2, 3), float("inf"))}, "'w' has values that are not finite"),
        ({"bn.running_var": -torch.ones(2)}, "'bn.running_var' has negative variances"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, torch.Tensor], line: str) -> None:
    state = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    with pytest.raises(ValueError) as caught:
        tree.check_like(state, GOOD, "w")
    assert line in str(caught.value)
    tree.check_like(dict(GOOD), GOOD, "w")
