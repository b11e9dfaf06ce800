"""Robust means: hand-computed, and what one poisoned client can do to each."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from common.exchange.records import StateDict
from common.settings.options import WHOLE, Average
from common.settings.parse import parse
from common.training import tree
from server_app.aggregation.mean import average, combine
from server_app.aggregation.mean import average_layers as aggregate
from server_app.aggregation.robust import trimmed
from server_app.messaging.census import unprotected
from server_app.stopped import Stopped
from tests.support import halves
from tests.support.battery import Tampering, changed_tensor, tiers
from tests.support.tiny import flat, play

PARAMETERS = {"weight", "bias"}


def options(robust: str, **changes: Any) -> Average:
    given = {"weights": "samples", "bn_buffers": True, "trim": 0.1, "clip_norm": 1.0, **changes}
    return Average.model_validate({"robust": robust, **given})


def states(*rows: list[float]) -> list[StateDict]:
    return [
        {"weight": torch.tensor([row]), "bias": torch.zeros(1), "seen": torch.tensor(i)}
        for i, row in enumerate(rows)
    ]


def of(clients: list[StateDict], robust: str, **changes: Any) -> list[float]:
    sizes = changes.pop("sizes", [1] * len(clients))
    before = changes.pop("before", states([0.0, 0.0])[0])
    result = average(clients, sizes, before, options(robust, **changes), PARAMETERS)
    weight: list[float] = result["weight"][0].tolist()
    return weight


def test_the_median_is_the_middle_in_each_coordinate() -> None:
    odd = states([1.0, 30.0], [2.0, 10.0], [900.0, 20.0])
    assert of(odd, "median") == [2.0, 20.0]
    even = states([1.0, 0.0], [2.0, 0.0], [4.0, 8.0], [900.0, 8.0])
    assert of(even, "median") == [3.0, 4.0]
    most = torch.finfo(torch.float32).max
    assert of(states([most, most], [most, most]), "median") == [most, most], "no overflow"


def test_the_trimmed_mean_leaves_out_both_ends_of_each_coordinate() -> None:
    clients = states([1.0, -900.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0], [900.0, 9.0])
    assert of(clients, "trimmed", trim=0.2) == [3.0, 7.0]
    assert of(clients, "trimmed", trim=0.4) == [3.0, 7.0]
    assert of(clients, "trimmed", trim=0.0) == [182.0, -174.0]


def test_so_many_are_left_out_at_each_end() -> None:
    cases = {(1, 0.1): 0, (2, 0.4): 0, (3, 0.1): 1, (10, 0.1): 1, (11, 0.1): 2, (10, 0.3): 3}
    cases |= {(5, 0.49): 2, (49, 1 / 49): 1}
    assert {case: trimmed(*case) for case in cases} == cases


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.floats(0, 0.49))
def test_the_trimmed_mean_is_that_of_the_sorted_middle(m: int, share: float) -> None:
    values = torch.randperm(m, generator=torch.Generator().manual_seed(m)).double() ** 2
    clients = [{"w": value[None]} for value in values]
    cut = trimmed(m, share)
    expected = values.sort().values[cut : m - cut].mean()
    got = combine(clients, [1] * m, options("trimmed", trim=share))["w"]
    assert float(got) == pytest.approx(float(expected)) and m - 2 * cut >= 1


def test_a_long_step_is_shortened_and_a_short_one_is_not() -> None:
    before = states([1.0, 1.0])[0]
    clients = states([4.0, 5.0], [1.0, 1.5])  # steps (3, 4) and (0, 0.5)
    # the first becomes 5 -> 1: (0.6, 0.8); means of (1.6, 1.8) and (1, 1.5)
    assert of(clients, "clip", before=before) == pytest.approx([1.3, 1.65])
    assert of(clients, "clip", before=before, sizes=[1, 3]) == pytest.approx([1.15, 1.575])
    assert of([before], "clip", before=before) == [1.0, 1.0], "no division by zero"


def test_clipping_that_never_binds_is_the_mean_to_the_bit() -> None:
    clients = [{k: torch.randn(5) for k in "ab"} for _ in range(4)]
    before = {k: torch.zeros(5) for k in "ab"}
    plain = average(clients, [1, 2, 3, 4], before, options("none"), PARAMETERS)
    wide = average(clients, [1, 2, 3, 4], before, options("clip", clip_norm=1e9), PARAMETERS)
    direct = tree.mean(clients, [1, 2, 3, 4])
    assert all(torch.equal(plain[k], wide[k]) and torch.equal(plain[k], direct[k]) for k in "ab")


def test_the_norm_leaves_out_buffers_that_are_not_averaged() -> None:
    net = nn.BatchNorm1d(1)
    before = tree.snapshot(net)
    sent = {**before, "weight": torch.tensor([1.5]), "running_var": torch.tensor([1e6])}
    names = tree.parameters_only(net)
    kept = average([sent], [1], before, options("clip", bn_buffers=False), names)
    assert float(kept["weight"]) == 1.5 and float(kept["running_var"]) == 1.0
    averaged = average([sent], [1], before, options("clip"), names)
    assert float(averaged["running_var"]) == pytest.approx(2.0)
    assert float(averaged["weight"]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("robust", ["median", "trimmed"])
def test_counters_keep_the_largest_and_dtypes_stay(robust: str) -> None:
    clients = states([1.0, 1.0], [2.0, 2.0], [3.0, 3.0])
    result = average(clients, [1, 1, 1], clients[0], options(robust), PARAMETERS)
    assert result["seen"].dtype == torch.int64 and int(result["seen"]) == 2
    assert result["weight"].dtype == torch.float32


def test_across_depths_each_entry_is_combined_among_its_owners() -> None:
    before = {"a": torch.zeros(1), "deep": torch.zeros(1)}
    clients = [{"a": torch.tensor([value])} for value in (1.0, 2.0, 900.0)]
    clients[0]["deep"] = torch.tensor([7.0])
    result = aggregate(clients, [1, 1, 1], before, options("median"), before.keys())
    assert float(result["a"]) == 2.0 and float(result["deep"]) == 7.0
    close = aggregate(clients, [1, 1, 1], before, options("clip"), before.keys())
    assert float(close["a"]) <= 1.0


HONEST = [[1.0, 2.0], [1.1, 2.1], [0.9, 1.9], [1.05, 2.05]]


@pytest.mark.parametrize("poison", [[1e6, 2e6], [-1e6, -2e6]])
def test_one_poisoned_client_of_five_moves_the_mean_and_no_robust_one(poison: list[float]) -> None:
    honest = torch.tensor(HONEST).mean(0)

    def off(robust: str) -> float:
        found = torch.tensor(of(states(*HONEST, poison), robust, clip_norm=3.0))
        return float((found - honest).norm())

    assert off("none") > 1e5
    assert off("median") < 0.2 and off("trimmed") < 0.2
    assert off("clip") <= 2 * 3.0 / 5 + 1e-5  # its step counts a fifth, and so does one left out


class Poisoning(Tampering):
    """Client 1 answers every round with its weights times −10⁴."""

    def _changed(self, reply: Message) -> Message:
        return reply if reply.has_error() else super()._changed(reply)

    @staticmethod
    def tamper(content: RecordDict) -> RecordDict:
        return changed_tensor(content, lambda flat: flat * -1e4)


def poisoned(out: Path, **changes: Any) -> float:
    """The final loss of a run with one poisoned client of six."""
    settings = {"clients": 6, "fleet": "lenet5@0.5", "rounds": 3, "train__lr": 0.1, "sanity": 0}
    try:
        result = play(flat(out, **settings, **changes), Poisoning)
    except Stopped as stopped:  # an honest client cannot train from such a model
        assert "training diverged" in str(stopped)
        return math.inf
    if any("undone" in entry for entry in result.journal):
        return math.inf
    assert result.summary["failures"] == []
    return float(result.journal[-1]["loss"])


@pytest.mark.parametrize("method", tiers(["fedavg", "fedgkd"]))
def test_a_run_with_a_poisoned_client_learns_under_every_robust_mean(method, tmp_path) -> None:
    chance = math.log(3)
    assert poisoned(tmp_path / "none", method=method) > 2 * chance
    for robust in ("median", "trimmed", "clip"):
        changes = {"average__robust": robust, "average__clip_norm": 1.0}
        assert poisoned(tmp_path / robust, method=method, **changes) < chance, robust


@pytest.mark.parametrize(
    ("rule", "across"),
    [  # each rule once in `make test-all`, each way for every other rule
        pytest.param(rule, across, marks=pytest.mark.full if first else pytest.mark.exhaustive)
        for i, rule in enumerate(WHOLE)
        for across, first in (("none", i % 2 == 0), ("same", i % 2 == 1))
    ],
)
def test_a_run_with_a_poisoned_client_learns_under_rules_for_whole_models(rule, across, tmp_path):
    changes = {"average__robust": rule, "average__trim": 0.1, "data__public": 0.2}
    settings = {"method": "fedavg", "average__across": across, **changes}
    assert poisoned(tmp_path, **settings) < math.log(3)


@pytest.mark.parametrize("rates", ["fixed", "redrawn"])
def test_medians_across_widths_are_looked_at_before_round_1(rates: str) -> None:
    changes = {"heterofl__rates": rates, "average__robust": "median", "score__bn": "batch"}
    half = halves.server(method="heterofl", fleet="cnn2@0.5,cnn2@0.25-up", **changes)
    half.begin([halves.client(k, model="cnn2@0.5") for k in range(2)])
    assert "protects nothing where the average is of one or two" in unprotected(half)


@pytest.mark.parametrize(
    ("key", "value"),
    [("average.trim", 0.5), ("average.clip-norm", 0.0), ("average.robust", "bulyan")],
)
def test_a_wrong_share_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        parse({**flat(Path("out"), method="fedavg"), key: value})
