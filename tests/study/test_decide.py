"""What paired numbers decide, against hand-computed intervals."""

import math

import pytest

from deploy.study.claims import Region, Verdict, decide, holm, together

ABOVE = Region(0.0, math.inf)
EVEN = [1.0, 2.0, 3.0, 4.0, 5.0]  # mean 3, s = 1.5811, half: 2.7764 · 0.7071 = 1.9632


def test_an_order_is_an_interval_that_leaves_out_zero() -> None:
    found = decide(EVEN, ABOVE)
    assert found.verdict is Verdict.HOLDS and found.seeds == 5
    assert found.mean == 3.0 and found.interval == pytest.approx(1.9632, abs=1e-4)
    assert found.p == pytest.approx(0.01324, abs=1e-4)  # t = 3 / 0.7071 with 4 degrees of freedom
    assert decide([-x for x in EVEN], ABOVE).verdict is Verdict.OPPOSITE
    wide = decide([x - 2.0 for x in EVEN], ABOVE)
    assert wide.verdict is Verdict.UNDECIDED and wide.p is not None and wide.p > 0.05


def test_comparable_needs_the_whole_interval_within_the_margin() -> None:
    assert decide([x - 3.0 for x in EVEN], Region(-2.0, 2.0)).verdict is Verdict.HOLDS
    assert decide([x - 3.0 for x in EVEN], Region(-1.9, 1.9)).verdict is Verdict.UNDECIDED
    assert decide([x + 2.0 for x in EVEN], Region(-2.0, 2.0)).verdict is Verdict.OPPOSITE


def test_fewer_than_five_seeds_decide_nothing() -> None:
    assert decide([10.0, 10.1, 10.2, 10.1], ABOVE).verdict is Verdict.UNDECIDED
    assert decide([], ABOVE).p is None


def test_ten_seeds_count_only_where_five_leave_it_open() -> None:
    against = [-9.0, -9.1, -9.2, -9.1, -9.0]
    assert decide(EVEN + against, ABOVE).seeds == 5
    open_ = [1.0, -1.0, 2.0, -2.0, 1.0]
    assert decide([*open_, 9.0, 9.1, 9.2], ABOVE).seeds == 5  # eight are not ten
    extended = decide([*open_, 9.0, 9.1, 9.2, 9.1, 9.0], ABOVE)
    assert extended.seeds == 10 and extended.verdict is Verdict.HOLDS


def test_equal_numbers_decide_and_a_target_never_reached_is_no_number() -> None:
    assert decide([1.0] * 5, ABOVE).verdict is Verdict.HOLDS
    assert decide([0.0] * 5, ABOVE).verdict is Verdict.UNDECIDED
    with pytest.raises(ValueError, match="not finite"):
        decide([1.0, math.inf], ABOVE)


def test_holm_steps_down_from_the_smallest() -> None:
    # 0.01 < 0.05/3, 0.02 < 0.05/2, 0.04 < 0.05; with 0.03 in the middle the second stops
    assert holm([0.04, None, 0.01, 0.02]) == [True, False, True, True]
    assert holm([0.04, 0.01, 0.03]) == [False, True, False]


def test_a_sentence_holds_if_all_of_it_does() -> None:
    holds, open_, against = Verdict.HOLDS, Verdict.UNDECIDED, Verdict.OPPOSITE
    assert together([holds, holds]) is holds
    assert together([holds, open_]) is open_
    assert together([holds, open_, against]) is against
    assert together([]) is open_
