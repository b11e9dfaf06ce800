"""Selection by the times of a virtual clock: Oort's scores, pacer and exploration; tiers."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.journal import ClockTime, Entry
from common.parse import parse
from server_app.candidate import Candidate
from server_app.selection import Selection
from server_app.selection_by_time import (
    by_tier,
    oort,
    penalties,
    percentage,
    scores,
    utilities,
)
from tests.support.halves import info
from tests.support.tiny import flat, play


def candidate(k: int, n: int = 10, **changes: Any) -> Candidate:
    """Return client k with n samples, without a job so far."""
    return replace(Candidate(k, n, "mlp", (), {}), **changes)


def drawn(rule: Any, candidates: list[Candidate], size: int, draws: int = 400) -> Counter[int]:
    """Return how often a rule selects each client."""
    rng = np.random.default_rng(0)
    chosen = [list(rule(candidates, size, rng)) for _ in range(draws)]
    assert all(len(set(ks)) == size for ks in chosen)
    return Counter(int(k) for ks in chosen for k in ks)


def test_the_utility_of_a_late_client_is_its_rounds_mean() -> None:
    three = [
        candidate(0, 10, metrics={1: {"loss": 2.0}, 3: {"loss": -1.0}}, durations={1: 5.0, 3: 4.0}),
        candidate(1, 20, metrics={1: {"loss": 3.0}, 4: {}}, durations={1: 6.0, 4: 7.0}),
        candidate(2, 30, durations={1: 90.0}, seconds=8.0),
        candidate(3, 40, seconds=8.0),
    ]
    assert utilities(three) == {0: {1: 20.0, 3: 0.0}, 1: {1: 60.0, 4: 20.0}, 2: {1: 40.0}}
    assert [client.duration for client in three] == [4.0, 7.0, 90.0, 8.0]


def test_the_score_by_hand() -> None:
    """min u · 0.999 = 9.99 and the range 20.01; √(0.1 ln 10) = 0.479853."""
    utility = {0: {9: 10.0}, 1: {2: 90.0, 4: 20.0}, 2: {1: 30.0}}
    free = dict.fromkeys(utility, 1.0)
    by_hand = {0: 0.000500 + 0.159951, 1: 0.500250 + 0.239926, 2: 1.0 + 0.479853}
    assert scores(utility, free, 10) == pytest.approx(by_hand, abs=2e-6)
    slow = {0: 1.0, 1: 0.25, 2: 0.0625}
    product = {k: by_hand[k] * slow[k] for k in slow}
    assert scores(utility, slow, 10) == pytest.approx(product, abs=2e-6)


def test_utilities_are_clipped_at_the_quantile_09() -> None:
    utility = {k: {1: float(k)} for k in range(1, 11)} | {11: {1: 1000.0}}
    rated = scores(utility, dict.fromkeys(utility, 1.0), 1)  # ln 1 = 0
    assert rated[11] == rated[10] == pytest.approx((10 - 0.999) / (1000 - 0.999))
    assert scores({0: {1: 0.0}, 1: {1: 0.0}}, {0: 1.0, 1: 1.0}, 1) == {0: 0.0, 1: 0.0}


def test_a_job_longer_than_the_30_percent_quantile_is_penalised() -> None:
    ten = [candidate(k, seconds=float(k + 1)) for k in range(10)]
    limit = 4.0  # position ⌊0.3 · 10⌋ of 1 … 10
    assert penalties(ten, 30) == {k: min(1.0, (limit / (k + 1)) ** 2) for k in range(10)}
    ten[9] = replace(ten[9], durations={2: 1.0, 3: 8.0})
    assert penalties(ten, 30)[9] == 0.25, "the latest job counts, not the prediction"
    assert {*penalties(ten, 100).values()} == {1.0}


@pytest.mark.parametrize(
    ("early", "late", "values"),
    [
        (1.0, 1.0, {40: 30, 41: 35, 60: 35, 61: 40, 400: 30 + 5 * 14, 500: 100}),
        (1.0, 1.5, {41: 30, 60: 30, 61: 35}),
        (1.0, 8.0, {41: 25, 61: 30}),
    ],
)
def test_the_pacer(early: float, late: float, values: dict[int, int]) -> None:
    """The second 20 rounds have another utility than the first; client 9 is new in each round."""
    utility = {0: {r: early if r <= 20 else late for r in range(1, 501)}}
    utility |= {9 + r: {r: 1e6} for r in range(1, 501)}
    assert {t: percentage(utility, t) for t in values} == values


def test_the_pacer_has_limits() -> None:
    def rounds(*by_twenty: float) -> dict[int, dict[int, float]]:
        return {0: {r: by_twenty[(r - 1) // 20] for r in range(1, 20 * len(by_twenty) + 1)}}

    growing = rounds(*(10.0**i for i in range(12)))
    assert percentage(growing, 20 * 12 + 1) == 5
    assert percentage(rounds(*[2.0] * 30), 601) == 100
    assert percentage({}, 41) == 35, "no utility at all is no change"


def tried(k: int, t: int, loss: float = 1.0, **changes: Any) -> Candidate:
    """Return a candidate of round t with a job in the round before."""
    jobs: dict[str, Any] = {"metrics": {t - 1: {"loss": loss}}, "durations": {t - 1: 1.0}, "t": t}
    return candidate(k, **{**jobs, **changes})


def test_the_share_of_new_clients_falls_to_three_tenths() -> None:
    for t, new in ((2, 8), (20, 6), (30, 4), (54, 3), (500, 3)):
        both = [tried(k, t) for k in range(20)]
        both += [candidate(k, seconds=1.0, t=t) for k in range(20, 40)]
        chosen = oort(both, 10, np.random.default_rng(t))
        assert sum(k >= 20 for k in chosen) == new, t


def test_new_clients_are_drawn_by_samples_and_speed_among_five_times_as_many() -> None:
    """Clients 0 to 9 have a job, so that 3 of round 60's 10 are new: 15 of 18 may be drawn."""
    old = [tried(k, 60) for k in range(10)]
    new = [candidate(k, 10, seconds=1.0, t=60) for k in range(10, 25)]
    new[0] = replace(new[0], n=40)
    new[1] = replace(new[1], n=40, seconds=2.0)  # (1/2)² · 40 = 10
    few = [candidate(k, 9, seconds=1.0, t=60) for k in range(25, 28)]
    counts = drawn(oort, [*old, *new, *few], 10)
    assert not any(counts[k] for k in (25, 26, 27))
    assert counts[10] > 2 * max(counts[k] for k in range(11, 25))
    assert sum(counts[k] for k in range(10)) == 7 * 400


def test_each_group_fills_up_the_others_places() -> None:
    for old, new in ((12, 0), (0, 12), (11, 1), (1, 11), (2, 10)):
        both = [tried(k, 60) for k in range(old)]
        both += [candidate(k, t=60) for k in range(old, old + new)]
        for size in (1, 10, 12):
            chosen = oort(both, size, np.random.default_rng(0))
            assert len({*chosen}) == size == len(chosen)


def test_only_scores_of_five_percent_of_the_cut_off_are_drawn() -> None:
    """In round 2 all have √(0.1 ln 2) = 0.263, and 1.263 · 0.05 > 0.263 · (1/8)²."""
    fast = [tried(k, 2, loss=10.0) for k in range(4)]
    slow = [tried(k, 2, durations={1: 8.0}) for k in range(4, 6)]
    assert {*drawn(oort, [*fast, *slow], 3)} == {0, 1, 2, 3}
    medium = [replace(client, durations={1: 2.0}) for client in slow]
    assert {*drawn(oort, [*fast, *medium], 3)} == {*range(6)}
    assert {*drawn(oort, [*fast, *slow], 6)} == {*range(6)}, "all are needed"


def test_tiers_by_predicted_time() -> None:
    """17 clients, client k the slower the smaller k: tiers of 3, 3, 4, 3 and 4 clients."""
    clients = [candidate(k, seconds=20.0 - k) for k in range(17)]
    rng = np.random.default_rng(0)
    tiers = Counter(frozenset(by_tier(clients, 3, rng)) for _ in range(1000))
    whole = ({14, 15, 16}, {11, 12, 13}, {7, 8, 9, 10}, {4, 5, 6}, {0, 1, 2, 3})
    for tier in whole:
        assert 150 < sum(n for chosen, n in tiers.items() if chosen <= tier) < 250
    assert all(any(chosen <= tier for tier in whole) for chosen in tiers)
    # with 8 of 17 clients in a round there are two tiers, with 10 one
    assert {min(by_tier(clients, 8, rng)) >= 9 for _ in range(50)} == {True, False}
    halves = [{*by_tier(clients, 8, rng)} for _ in range(50)]
    assert all(half <= {*range(9)} or half <= {*range(9, 17)} for half in halves)
    assert {*drawn(by_tier, clients, 10)} == {*range(17)}


@pytest.mark.parametrize("by", ["oort", "tier"])
def test_times_need_a_clock(by: str, tmp_path: Path) -> None:
    line = f'select.by = "{by}" needs profiles: without devices a run has no clock'
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        Selection(parse(flat(tmp_path, select__by=by)))


def entries(rounds: int) -> list[Entry]:
    """Return entries of rounds with jobs of clients 2t and 2t + 1 of 8; the second is late."""
    made = []
    for t in range(1, rounds + 1):
        k, late = 2 * t % 8, (2 * t + 1) % 8
        times = ClockTime(start=t, end=t + 1, clients={k: 0.5 + k, late: 3.25}, late=[late])
        losses = {k: {"loss": 2.0 + 1 / t, "more": 1.0}}
        made.append(Entry(round=t, client_metrics=losses, clock=times))
    return made


@pytest.mark.parametrize("by", ["oort", "tier"])
def test_a_selection_after_the_journal_is_the_same(by: str, tmp_path: Path) -> None:
    config = parse(flat(tmp_path, clients=8, per_round=3, profiles="pi4", select__by=by))
    infos = [info(k=k, n=5 + k) for k in range(8)]
    live = Selection(config)
    live.predicted = lambda k: 8.0 - k
    for entry in entries(70):
        live.add(entry)
        if entry.round in (1, 3, 40, 70):
            resumed = Selection(config)
            resumed.predicted = live.predicted
            for earlier in entries(entry.round):
                resumed.add(Entry.model_validate_json(earlier.model_dump_json()))
            for seed in range(5):
                first, again = (
                    s.draw(infos, np.random.default_rng(seed), entry.round + 1)
                    for s in (live, resumed)
                )
                assert first == again and len(first) == 3
    if by == "oort":
        assert live.metrics[2][1] == {"loss": 3.0} and live.durations[3][1] == 3.25
        assert len(live.durations) == 8 and {*live.metrics} == {0, 2, 4, 6}
    else:
        assert live.metrics == live.durations == {}


def test_a_candidate_has_its_times_and_the_round(tmp_path: Path) -> None:
    config = parse(flat(tmp_path, clients=8, profiles="pi4", select__by="oort"))
    selection, seen = Selection(config), list[Candidate]()
    selection.predicted = lambda k: 0.25 * k

    def rule(candidates: Any, size: int, rng: Any) -> list[int]:
        seen.extend(candidates)
        return [3]

    selection.rule = rule
    for entry in entries(5):
        selection.add(entry)
    assert selection.draw([info(k=2), info(k=3)], np.random.default_rng(0), 6) == {3}
    metrics = {t: {"loss": 2.0 + 1 / t, "more": 1.0} for t in (1, 5)}
    assert seen == [
        Candidate(2, 5, "mlp", (), metrics, {1: 2.5, 5: 2.5}, 0.5, 6),
        Candidate(3, 5, "mlp", (), {}, {1: 3.25, 5: 3.25}, 0.75, 6),
    ]


@pytest.mark.parametrize("by", ["oort", pytest.param("tier", marks=pytest.mark.full)])
def test_a_resumed_run_goes_on_with_the_same_clients(by: str, tmp_path: Path) -> None:
    settings = {"clients": 6, "per_round": 2, "profiles": "pi4,phone-low", "select__by": by}
    whole = play(flat(tmp_path / "whole", rounds=4, **settings))
    play(flat(tmp_path / "part", rounds=2, **settings))
    resumed = play(flat(tmp_path / "part", rounds=4, resume=True, **settings))
    selected = [entry["selected"] for entry in whole.journal[1:]]
    assert [entry["selected"] for entry in resumed.journal[1:]] == selected
    assert resumed.weights == whole.weights
    if by == "oort":  # all of round 1 and most of round 2 are new
        assert len({*selected[0], *selected[1]}) >= 3
