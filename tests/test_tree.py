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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_mean_by_pieces_has_the_same_bits(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = torch.Generator().manual_seed(2)
    shapes = {"w": (7, 5, 3, 3), "b": (7, 1, 1, 1), "empty": (0, 2, 2, 2)}
    states = [
        {n: torch.randn(*s, generator=rng).to(memory_format=layout) for n, s in shapes.items()}
        for _ in range(5)
    ]
    whole = tree.mean(states, [3, 1, 4, 1, 5])
    monkeypatch.setattr(tree, "PIECE", 8)
    for name, value in tree.mean(states, [3, 1, 4, 1, 5]).items():
        assert torch.equal(value, whole[name]) and value.stride() == whole[name].stride()
        assert value.stride() == states[0][name].stride()


@pytest.mark.parametrize("place", [0, 7, 8, 19])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_found(
    place: int, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "PIECE", 8)
    w = torch.ones(4, 5)
    assert tree.finite(w) and tree.finite(torch.ones(0)) and tree.finite(torch.tensor([1 << 40]))
    w.view(-1)[place] = number
    assert not tree.finite(w)
