"""DL-MH's maps and masks."""

from __future__ import annotations

import pytest
import torch

from common.ensemble import check_schema, nearest_class, scatter, to_local
from common.models.masked import narrowed, widened


def test_figure_4_client_1_maps_classes_0_3_4_7_to_0_1_2_3():
    assert to_local(torch.tensor([7, 0, 4, 3]), [0, 3, 4, 7]).tolist() == [3, 0, 2, 1]


def test_predictions_land_in_the_columns_of_their_classes():
    theta = torch.tensor([[0.2, 0.5, 0.3]])
    assert scatter(theta, [4, 0, 2], 5).tolist() == [pytest.approx([0.5, 0, 0.3, 0, 0.2])]


def test_masked_rows_still_sum_to_one():
    theta = torch.softmax(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), 1)
    assert scatter(theta, [1, 5, 6], 8).sum(1).tolist() == pytest.approx([1.0] * 20)


def test_the_nearest_class_is_the_best_among_the_clients_own():
    theta = torch.tensor([[0.6, 0.1, 0.3], [0.1, 0.5, 0.4]])
    assert nearest_class(theta, [1, 2]).tolist() == [1, 0]


def test_a_client_without_class_0_gets_no_label_for_it():
    # Algorithm 5 as printed starts from θ[k][0] = 0.9: max − θ = 0, which no own class undercuts,
    # so it would keep d[0] = 1 although class 2 is nearer.
    assert nearest_class(torch.tensor([[0.9, 0.02, 0.08]]), [1, 2]).tolist() == [1]


def test_with_all_classes_the_nearest_is_the_argmax():
    theta = torch.rand(50, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(nearest_class(theta, range(6)), theta.argmax(1))


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
        check_schema(d, 10)


def test_a_widened_head_keeps_the_clients_rows_and_narrows_back():
    own = {"head.weight": torch.tensor([[1.0], [2.0]]), "head.bias": torch.tensor([3.0, 4.0])}
    own["conv.weight"] = torch.tensor([9.0])
    fresh = {"head.weight": torch.zeros(4, 1), "head.bias": torch.zeros(4)}
    wide = widened(own, fresh, [1, 3])
    assert wide["head.weight"].flatten().tolist() == [0, 1, 0, 2]
    assert wide["head.bias"].tolist() == [0, 3, 0, 4]
    again = narrowed(wide, [1, 3])
    assert all(torch.equal(again[name], own[name]) for name in own)


def test_the_head_of_a_single_class_has_two_rows_and_one_counts():
    own = {"head.weight": torch.tensor([[1.0], [2.0]]), "head.bias": torch.tensor([3.0, 4.0])}
    fresh = {"head.weight": torch.zeros(3, 1), "head.bias": torch.zeros(3)}
    wide = widened(own, fresh, [2])
    assert wide["head.bias"].tolist() == [0, 0, 3]
    assert narrowed(wide, [2])["head.bias"].tolist() == [3, 3]
