"""FedORION's Appendix B, against points worked out by hand."""

from __future__ import annotations

import pytest

from deploy.study import speedup
from deploy.study.speedup import Costs, draw


def test_fedorion_at_half_the_clients() -> None:
    # α = ½, N = 20: α + (1 − α) M = 11.5, so T = 11.5 · 20 / 4 = 57.5
    assert Costs(0.5, 20).teachers() == pytest.approx(57.5)
    # clients: 10 R_40 + 10 (22 + 1) R_40 = 240 an iteration, ten iterations
    assert Costs(0.5, 20).fedorion_clients() == pytest.approx(2400)
    # server: (57.5 + 1) · 5
    assert Costs(0.5, 20).fedorion_server() == pytest.approx(292.5)


def test_feddf_at_half_the_clients() -> None:
    # clients: 10 + 10 · 22 = 230 an iteration
    assert Costs(0.5, 20).feddf_clients() == pytest.approx(2300)
    # server: a WRN-40-1 student and four ResNet-18: 5 · 57.5 + 1 + 4 · 22 = 376.5, five iterations
    assert Costs(0.5, 20).feddf_server() == pytest.approx(1882.5)
    assert Costs(0.5, 20).speedup() == pytest.approx((2300 + 1882.5) / (2400 + 292.5))


@pytest.mark.parametrize(
    ("alpha", "N", "expected"),
    [
        (0.0, 20, 7595 / 5155),  # (440 · 10 + (550 + 89) · 5) / (460 · 10 + (110 + 1) · 5)
        (1.0, 20, 77 / 23),
        (1.0, 30, 93.25 / 34.25),
        (1.0, 21, 78.625 / 24.125),
    ],
)
def test_the_speed_up_at_the_ends(alpha: float, N: int, expected: float) -> None:
    assert Costs(alpha, N).speedup() == pytest.approx(expected)


def test_the_printed_constants_are_those_of_k_3_and_p_5() -> None:
    # B.2.2: ((α + (1 − α) M) 1.25 N + 5 M − (M − 1)) I_s
    for alpha in (0.0, 0.3, 1.0):
        printed = ((alpha + (1 - alpha) * 22) * 1.25 * 40 + 5 * 22 - 21) * 5
        assert Costs(alpha, 40).feddf_server() == pytest.approx(printed)


def test_the_speed_up_grows_with_the_share_that_skips() -> None:
    for N in speedup.CLIENTS:
        curve = [Costs(alpha / 20, N).speedup() for alpha in range(21)]
        assert curve == sorted(curve)


def test_the_paper_s_largest_value_is_not_that_of_its_formula() -> None:
    assert Costs(1.0, 20).speedup() == pytest.approx(3.35, abs=0.005)
    assert Costs(1.0, 21).speedup() == pytest.approx(3.26, abs=0.005)


def test_the_ratio_of_multiply_adds_is_not_the_ratio_of_parameters() -> None:
    import torch

    from common.models import build
    from tests.support.cost import macs

    with torch.device("meta"):
        shape = (3, 32, 32)
        wrn = macs(build("wrn-40-1", shape, 10, seed=0), shape)
        own, small = (
            macs(build("resnet18", shape, 10, seed=0, stem=stem), shape)
            for stem in ("imagenet", "cifar")
        )
    assert own / wrn == pytest.approx(0.44, abs=0.01)
    assert small / wrn == pytest.approx(6.7, abs=0.05)


def test_figure_5_has_a_curve_for_each_number_of_clients() -> None:
    (axes,) = draw((10, 20)).axes
    curves = [line for line in axes.lines if str(line.get_label()).startswith("N = ")]
    assert len(curves) == 2
    assert curves[1].get_ydata()[-1] == pytest.approx(77 / 23)
