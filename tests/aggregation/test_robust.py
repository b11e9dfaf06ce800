"""Robust means of models and predictions, bounds for features, and what poisoned clients can do."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from common.exchange import tree
from common.exchange.predictions import encoded
from common.exchange.records import StateDict
from common.losses.distillation import opinion
from common.methods import dl_sh, ds_fl, fedgkt, fedin, fedmd
from common.settings.options import WHOLE, Average
from server_app.aggregation.mean import average, combine
from server_app.aggregation.mean import average_layers as aggregate
from server_app.aggregation.robust import bounded_rows, probabilities, trimmed
from server_app.messaging.census import unprotected
from server_app.method import Replies
from server_app.stopped import Stopped
from tests.support import battery, halves
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


def test_median_and_trimmed_mean_by_hand() -> None:
    odd = states([1.0, 30.0], [2.0, 10.0], [900.0, 20.0])
    assert of(odd, "median") == [2.0, 20.0]
    even = states([1.0, 0.0], [2.0, 0.0], [4.0, 8.0], [900.0, 8.0])
    assert of(even, "median") == [3.0, 4.0]
    most = torch.finfo(torch.float32).max
    assert of(states([most, most], [most, most]), "median") == [most, most], "no overflow"
    clients = states([1.0, -900.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0], [900.0, 9.0])
    assert of(clients, "trimmed", trim=0.2) == [3.0, 7.0]
    assert of(clients, "trimmed", trim=0.4) == [3.0, 7.0]
    assert of(clients, "trimmed", trim=0.0) == [182.0, -174.0]
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


def test_a_long_step_alone_is_shortened_by_its_averaged_norm() -> None:
    before = states([1.0, 1.0])[0]
    clients = states([4.0, 5.0], [1.0, 1.5])  # steps (3, 4) and (0, 0.5)
    # the first becomes 5 -> 1: (0.6, 0.8); means of (1.6, 1.8) and (1, 1.5)
    assert of(clients, "clip", before=before) == pytest.approx([1.3, 1.65])
    assert of(clients, "clip", before=before, sizes=[1, 3]) == pytest.approx([1.15, 1.575])
    assert of([before], "clip", before=before) == [1.0, 1.0], "no division by zero"
    clients = [{k: torch.randn(5) for k in "ab"} for _ in range(4)]
    before = {k: torch.zeros(5) for k in "ab"}
    plain = average(clients, [1, 2, 3, 4], before, options("none"), PARAMETERS)
    wide = average(clients, [1, 2, 3, 4], before, options("clip", clip_norm=1e9), PARAMETERS)
    direct = tree.mean(clients, [1, 2, 3, 4])
    assert all(torch.equal(plain[k], wide[k]) and torch.equal(plain[k], direct[k]) for k in "ab")
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


ROWS = [[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.0, 0.0, 1.0]]
MEDIAN = torch.tensor([0.6, 0.1, 0.1]) / 0.8
ROBUST = {"public__robust": "median"}


def replies(kind: Any, rows: list[list[float]], n: int, **more: Any) -> Replies[Any]:
    """Replies of clients with the same prediction for n images."""
    sent = []
    for k, row in enumerate(rows):
        theta = torch.tensor([row]).expand(n, -1).contiguous()
        fields: dict[str, Any] = {"theta": theta, "w": None}
        if kind is not ds_fl.Reply:
            fields |= encoded(theta, "float32", **more)
        known = {name: value for name, value in fields.items() if name in kind.model_fields}
        sent.append((halves.client(k), kind(**known)))
    return Replies.of(sent)


@pytest.mark.parametrize("method", ["ds-fl", "fdmeta"])
def test_the_clients_learn_the_median_of_their_probabilities(method: str) -> None:
    table = method.replace("-", "_")
    settings = {**battery.PUBLIC, "public__learn": False, f"{table}__aggregation": "mean"}
    half = halves.server(method=method, **settings, **ROBUST)
    half.request(1)
    half.step(1, replies(ds_fl.Reply, ROWS, 40))
    assert_close(half.request(2).y, MEDIAN.expand(40, 3))
    assert_close(probabilities(torch.zeros(1, 3)), torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize(("align", "target"), [("l1", [0.6, 0.1, 0.1]), ("kl", MEDIAN.tolist())])
def test_the_consensus_is_the_median_of_logits_or_probabilities(align, target) -> None:
    half = halves.server(method="fedmd", fedmd__align=align, **battery.PUBLIC, **ROBUST)
    p = align == "kl"
    told = half.second(1, replies(fedmd.Reply, ROWS, 4, probabilities=p))
    assert told[0] is told[2]
    assert_close(told[0].said(probabilities=p), torch.tensor(target).expand(4, 3))


def test_a_trimmed_mean_of_predictions_leaves_out_both_ends() -> None:
    trimmed = {"public__robust": "trimmed", "public__trim": 0.2}
    half = halves.server(method="fedmd", **battery.PUBLIC, **trimmed)
    rows = [[0.0], [1.0], [2.0], [6.0], [9e4]]
    told = half.second(1, replies(fedmd.Reply, rows, 2, probabilities=False))
    assert_close(told[0].said(probabilities=False), torch.full((2, 1), 3.0))


@pytest.mark.parametrize("method", ["feddf", "fedkemf"])
def test_the_ensemble_of_networks_is_a_median(method: str) -> None:
    half = halves.server(method=method, **battery.PUBLIC, **ROBUST)
    z = [torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[3.0, 1.0, 0.0]]), torch.full((1, 3), 9e4)]
    z[2][0, 2] = -9e4
    middle = torch.tensor([[3.0, 1.0, 0.0]])
    assert_close(half.opinion(iter(z), "logits", 2.0), torch.softmax(middle / 2, 1))
    p = torch.stack([torch.softmax(one / 2, 1) for one in z]).median(0).values
    assert_close(half.opinion(iter(z), "mean", 2.0), p / p.sum())
    plain = halves.server(method=method, **battery.PUBLIC)
    assert torch.equal(plain.opinion(iter(z), "mean", 2.0), opinion(z, "mean", 2.0))


@pytest.mark.parametrize("exchange", ["probs", "logits"])
def test_dl_sh_takes_the_median_without_confidences(exchange: str) -> None:
    settings = {**battery.SHOT, "confidence__kind": "uniform", "dl_sh__exchange": exchange}
    half = halves.server(method="dl-sh", ensemble__aggregation="median", **settings)
    sent = replies(dl_sh.Reply, ROWS, half.samples, probabilities=exchange == "probs")
    middle = torch.tensor([0.6, 0.1, 0.1])
    expected = MEDIAN if exchange == "probs" else torch.softmax(middle, 0)
    assert_close(half.targets_of(sent), expected.expand(half.samples, 3))


def test_rows_are_bounded_by_the_median_client_and_so_are_features() -> None:
    a = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 30.0]])  # norms 5, 1, 30: median 5
    b = torch.tensor([[6.0, 8.0]])
    c = torch.tensor([[3e38, 0.0], [0.0, 0.0]])  # the lower median of its rows is 0
    d = torch.tensor([[0.0, -4e5]])
    bounded = bounded_rows([a, b, c, d], 2.0)  # medians 5, 10, 0 and 4e5: at most 10
    assert bounded[0].tolist() == [[3.0, 4.0], [0.0, 1.0], [0.0, 10.0]]
    assert torch.equal(bounded[1], b) and bounded[2].tolist() == [[10.0, 0.0], [0.0, 0.0]]
    assert bounded[3].tolist() == [[0.0, -10.0]]
    seen: list[Tensor] = []
    half = halves.server(method="fedgkt", **battery.OVERRIDES["fedgkt"], fedgkt__bound=2.0)
    half._logits = lambda h: seen.append(h) or torch.zeros(len(h), 3)
    sent = [
        fedgkt.Reply(h=images(4, s), z=torch.ones(4, 3), y=torch.arange(4) % 3)
        for s in (1.0, 1.0, 500.0)
    ]
    half.step(1, Replies.of([(halves.client(k, n=4), reply) for k, reply in enumerate(sent)]))
    assert [float(h.amax()) for h in seen] == [1.0, 1.0, 2.0]
    half = halves.server(method="fedin", **battery.DEPTHS, fedin__bound=3.0)
    sent = [fedin.Reply(w={}, s_in=images(2, s), s_out=images(2, 1.0)) for s in (1.0, 2.0, 900.0)]
    half.after(1, Replies.of([(halves.client(k), reply) for k, reply in enumerate(sent)]))
    assert [float(s.amax()) for s in half.s_in.values()] == [1.0, 2.0, 6.0]
    assert all(math.isclose(float(s.amax()), 1.0) for s in half.s_out.values())


def images(n: int, scale: float) -> Tensor:
    return scale * torch.ones(n, 16, 4, 4)
