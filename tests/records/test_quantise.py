"""Predictions and confidences on the wire."""

import pytest
import torch

from common.exchange import quantise


def test_a_byte_holds_255_steps_between_low_and_high_which_may_be_equal():
    x = torch.tensor([0.0, 0.2, 0.5, 1.0])
    assert quantise.encode(x, "uint8").tolist() == [0, 51, 128, 255]
    assert quantise.decode(torch.tensor([51], dtype=torch.uint8)).tolist() == pytest.approx([0.2])
    x = torch.tensor([-4.0, -1.5, 6.0])
    values = quantise.encode(x, "uint8", -4.0, 6.0)
    assert values.tolist() == [0, 64, 255]
    assert quantise.decode(values, -4.0, 6.0).tolist() == pytest.approx([-4, -1.49, 6], abs=0.001)
    values = quantise.encode(torch.full((3,), 2.5), "uint8", 2.5, 2.5)
    assert quantise.decode(values, 2.5, 2.5).tolist() == [2.5, 2.5, 2.5]


def test_rounding_costs_half_a_step_at_most_and_rows_sum_to_one_again():
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    for dtype, step in (("float32", 0), ("float16", 2**-11), ("uint8", 1 / 510)):
        assert float((quantise.decode(quantise.encode(x, dtype)) - x).abs().max()) <= step + 1e-7
    p = torch.full((1, 3), 1 / 3)
    values = quantise.encode(p, "uint8")
    assert values.tolist() == [[85, 85, 85]]
    quarters = quantise.encode(torch.full((1, 4), 0.25), "uint8")
    assert quarters.tolist() == [[64, 64, 64, 64]]  # 256/255 in all
    assert quantise.decode_probabilities(quarters).tolist() == [[0.25, 0.25, 0.25, 0.25]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_honest_probabilities_of_many_classes_pass(dtype: str):
    p = torch.softmax(torch.randn(50, 100, generator=torch.Generator().manual_seed(0)), 1)
    quantise.check_rows(quantise.encode(p, dtype), dtype, "theta")


def test_rows_confidences_and_dtypes_other_than_agreed_are_refused():
    zeros, rows = torch.zeros(1, 1000, dtype=torch.uint8), torch.tensor([[0.5, 0.5], [0.7, 0.4]])
    unit, other = torch.tensor([-0.1, 0.5]), r"is float32\[4\], expected uint8\[4"
    for check, given, line in (
        (quantise.check_rows, (rows, "float32"), "row 1 sums to 1.1"),
        (quantise.check_rows, (zeros, "uint8"), "row 0 sums to 0, not to 1"),
        (quantise.check_unit, (unit,), r"reaches from -0\.1 to 0\.5, it must"),
        (quantise.check_dtype, (torch.zeros(4), (4,), "uint8"), other),
    ):
        with pytest.raises(ValueError, match=f"^theta.*{line}"):
            check(*given, "theta")
