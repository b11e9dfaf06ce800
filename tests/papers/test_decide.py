"""What paired numbers decide, against hand-computed intervals."""

import math

import pytest

from deploy.report.groups import holm
from tests.papers.judging import Region, Side, decide, detectable

pytestmark = pytest.mark.docs

ABOVE = Region(0.0, math.inf)
EVEN = [1.0, 2.0, 3.0, 4.0, 5.0]  # mean 3, s = 1.5811, half: 2.7764 · 0.7071 = 1.9632


def test_an_order_is_an_interval_that_leaves_out_zero() -> None:
    found = decide(EVEN, ABOVE)
    assert found.side is Side.CLAIMED and found.seeds == 5
    assert found.mean == 3.0 and found.interval == pytest.approx(1.9632, abs=1e-4)
    assert found.p == pytest.approx(0.01324, abs=1e-4)  # t = 3 / 0.7071 with 4 degrees of freedom
    assert decide([-x for x in EVEN], ABOVE).side is Side.AGAINST
    wide = decide([x - 2.0 for x in EVEN], ABOVE)
    assert wide.side is Side.OPEN and wide.p is not None and wide.p > 0.05


def test_comparable_needs_the_whole_interval_within_the_margin() -> None:
    assert decide([x - 3.0 for x in EVEN], Region(-2.0, 2.0)).side is Side.CLAIMED
    assert decide([x - 3.0 for x in EVEN], Region(-1.9, 1.9)).side is Side.OPEN
    assert decide([x + 2.0 for x in EVEN], Region(-2.0, 2.0)).side is Side.AGAINST


def test_at_least_has_no_upper_bound_and_at_most_no_lower_one() -> None:
    gains = [322.0, 323.0, 324.0, 323.0, 323.0]
    assert decide(gains, Region(225.0, math.inf)).side is Side.CLAIMED
    assert decide(gains, Region(150.0, 300.0)).side is Side.AGAINST
    assert decide([-99.9] * 5, Region(-math.inf, -95.0)).side is Side.CLAIMED


def test_fewer_than_five_seeds_decide_nothing_and_all_seeds_count() -> None:
    assert decide([10.0, 10.1, 10.2, 10.1], ABOVE).side is Side.OPEN
    assert decide([], ABOVE).p is None
    open_ = [1.0, -1.0, 2.0, -2.0, 1.0]
    assert decide(open_, ABOVE).side is Side.OPEN
    more = decide([*open_, 9.0, 9.1, 9.2, 9.1, 9.0], ABOVE)
    assert more.seeds == 10 and more.side is Side.CLAIMED


def test_equal_numbers_decide_and_a_target_never_reached_is_no_number() -> None:
    assert decide([1.0] * 5, ABOVE).side is Side.CLAIMED
    assert decide([0.0] * 5, ABOVE).side is Side.OPEN
    with pytest.raises(ValueError, match="not finite"):
        decide([1.0, math.inf], ABOVE)


def test_the_detectable_effect_adds_the_quantile_of_the_power() -> None:
    # t(0.975) = 2.7764 and t(0.8) = 0.9410 with 4 degrees of freedom, s / √n = 0.7071
    assert detectable(1.9632, 5) == pytest.approx((2.7764 + 0.9410) * 0.7071, abs=1e-3)
    # t(0.975) = 2.2622 and t(0.8) = 0.8834 with 9
    assert detectable(2.2622, 10) == pytest.approx(2.2622 + 0.8834, abs=1e-3)


def test_holm_steps_down_from_the_smallest() -> None:
    # 0.01 < 0.05/3, 0.02 < 0.05/2, 0.04 < 0.05; with 0.03 in the middle the second stops
    assert holm([0.04, None, 0.01, 0.02]) == [True, False, True, True]
    assert holm([0.04, 0.01, 0.03]) == [False, True, False]
