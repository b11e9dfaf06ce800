"""Krum, Multi-Krum, geometric median and FLTrust: by hand, by brute force, against liars."""

import itertools
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum
from scipy.optimize import minimize

from common.exchange import tree
from common.exchange.records import StateDict
from common.settings.options import WHOLE, Average
from server_app.aggregation.mean import average
from server_app.stopped import Stopped
from tests.support import halves
from tests.support.tiny import flat, overrides, play

NAMES = {"a", "b"}
ZERO = {"a": torch.zeros(1), "b": torch.zeros(1)}
RULES = [rule for rule in WHOLE if rule != "fltrust"]


def points(*rows: tuple[float, float]) -> list[StateDict]:
    """Models of two entries."""
    return [{"a": torch.tensor([float(x)]), "b": torch.tensor([float(y)])} for x, y in rows]


def mean(rule: str, states: list[StateDict], **more: Any) -> list[float]:
    """The robust mean of two-entry models, as [a, b]."""
    trusted, sizes = more.pop("trusted", None), more.pop("sizes", [1] * len(states))
    options = Average.model_validate({"robust": rule, "weights": "samples", **more})
    result = average(states, options.shares(sizes), ZERO, options, NAMES, trusted)
    return [float(result["a"]), float(result["b"])]


LINE = points((0, 0), (1, 0), (3, 0), (4.5, 0), (100, 0))
"""With f = 1 the two nearest count: scores 10, 5, 6.25, 14.5 and 18,521."""


def test_krum_takes_the_model_nearest_to_its_neighbours_and_multi_krum_all_but_the_worst() -> None:
    assert mean("krum", LINE, trim=0.2) == [1.0, 0.0]
    assert mean("multi-krum", LINE, trim=0.2, sizes=[1, 1, 1, 1, 10**6]) == [2.125, 0.0]
    corners = points((0, 0), (0, 1), (1, 0), (1, 1))  # of equal scores, the first client's
    assert mean("krum", corners, trim=0.0) == [0.0, 0.0]
    assert mean("krum", corners[::-1], trim=0.0) == [1.0, 1.0]
    clients = points((0, 900), (0.1, -900), (0.2, 0), (0.3, 5), (50, 0))
    options = Average(robust="krum", weights="uniform", bn_buffers=False, trim=0.2)
    result = average(clients, [1] * 5, ZERO, options, {"a"})
    assert [round(float(v), 1) for v in result.values()] == [0.1, 0.0]


def drawn(n: int, seed: int) -> list[StateDict]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (3, 2), "b": (4,)}
    return [
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(n)
    ]


def vector(state: StateDict) -> np.ndarray:
    return np.concatenate([state[name].double().numpy().ravel() for name in ("a", "b")])


def whole(rule: str, states: list[StateDict], **more: Any) -> np.ndarray:
    options = Average.model_validate({"robust": rule, "weights": "uniform", **more})
    zero = {name: torch.zeros_like(value) for name, value in states[0].items()}
    return vector(average(states, [1] * len(states), zero, options, NAMES))


@pytest.mark.parametrize(("n", "f"), [(5, 1), (7, 2), (9, 3), (10, 3), (4, 0)])
def test_krum_is_that_of_the_definition_and_of_flower(n: int, f: int) -> None:
    states = drawn(n, seed=n)
    x = [vector(state) for state in states]
    scores = [
        min(
            sum(float(((x[i] - x[j]) ** 2).sum()) for j in others)
            for others in itertools.combinations([j for j in range(n) if j != i], n - f - 2)
        )
        for i in range(n)
    ]
    order = sorted(range(n), key=scores.__getitem__)
    arrays = [ArrayRecord([v.numpy() for v in state.values()]) for state in states]
    sent = [RecordDict({"w": w, "i": ConfigRecord({"i": i})}) for i, w in enumerate(arrays)]
    for rule, keep in (("krum", 1), ("multi-krum", n - f)):
        ours = whole(rule, states, trim=f / n)
        np.testing.assert_allclose(ours, np.mean([x[i] for i in order[:keep]], axis=0), rtol=1e-6)
        chosen = [int(one["i"]["i"]) for one in select_multikrum(sent, f, keep)]  # type: ignore[index, arg-type, call-overload]
        assert chosen == order[:keep]


def test_the_geometric_median_by_hand() -> None:
    on_a_line = points((0, 0), (1, 0), (5, 0))
    assert mean("geometric-median", on_a_line) == pytest.approx([1, 0], abs=1e-3)
    heavy = mean("geometric-median", on_a_line, sizes=[1, 1, 3])
    assert heavy == pytest.approx([5, 0], abs=1e-3), "a client with most of the samples decides"
    uniform = mean("geometric-median", on_a_line, sizes=[1, 1, 3], weights="uniform")
    assert uniform == pytest.approx([1, 0], abs=1e-3)
    triangle = points((0, 0), (1, 0), (0.5, math.sqrt(0.75)))
    assert mean("geometric-median", triangle) == pytest.approx([0.5, math.sqrt(0.75) / 3])


@pytest.mark.parametrize("n", [3, 6, 11])
def test_the_geometric_median_has_the_smallest_sum_of_distances(n: int) -> None:
    states = drawn(n, seed=n)
    x = np.array([vector(state) for state in states])

    def objective(v: np.ndarray) -> float:
        return float(np.linalg.norm(x - v, axis=1).sum())

    best = minimize(objective, x.mean(0), method="Nelder-Mead", options={"maxfev": 20_000})
    assert objective(whole("geometric-median", states)) <= best.fun * (1 + 1e-5)


def test_fltrust_by_hand_weighs_steps_by_their_cosine() -> None:
    clients = points((1, 0), (0, 5), (-1, 0), (3, 3), (0, 0))
    trusted = points((2, 0))[0]
    # cosines 1, 0, −1, √½ and none; scaled steps (2, 0) and (√2, √2)
    root = math.sqrt(0.5)
    expected = [(2 + root * 2 * root) / (1 + root), root * 2 * root / (1 + root)]
    for sizes in ([1] * 5, [1, 9, 9, 1, 9]):
        found = mean("fltrust", clients, trusted=trusted, sizes=sizes)
        assert found == pytest.approx(expected)
    before = {"a": torch.tensor([7.0]), "b": torch.tensor([1.0])}
    options = Average(robust="fltrust", weights="uniform")
    for trusted, clients in (((8, 1), points((6, 1))), ((7, 1), points((9, 1)))):
        result = average(clients, [1], before, options, NAMES, points(trusted)[0])
        assert result == before
    clients = [
        {"a": torch.ones(1), "running_var": torch.tensor([v]), "seen": torch.tensor(i)}
        for i, v in enumerate((1.0, 2.0, 1e6))
    ]
    before = {"a": torch.zeros(1), "running_var": torch.ones(1), "seen": torch.tensor(0)}
    options = Average(robust="fltrust", weights="uniform")
    result = average(clients, [1] * 3, before, options, {"a"}, {"a": torch.tensor([3.0])})
    assert [float(value) for value in result.values()] == [3.0, 2.0, 2.0]


HONEST = [(1.0, 2.0), (1.1, 2.1), (0.9, 1.9), (1.05, 2.05), (0.95, 2.0), (1.0, 1.95)]
FAR = [(1e6, 2e6), (-1e6, -2e6), (1e30, -1e30), (30.0, -30.0)]
GUIDE = points((1.0, 2.0))[0]


@pytest.mark.parametrize("rule", WHOLE)
@pytest.mark.parametrize("far", FAR)
def test_two_liars_of_eight_are_bounded_and_none_is_near_the_mean(rule, far) -> None:
    centre = np.mean(HONEST, axis=0)
    alone = mean(rule, points(*HONEST), trim=0.1, trusted=GUIDE)
    assert float(np.linalg.norm(alone - centre)) < 0.1
    for share in ([far, far], [far, (-far[0], far[1])]):
        lied = mean(rule, points(*HONEST, *share), trim=0.25, trusted=GUIDE)
        assert float(np.linalg.norm(lied - centre)) < 0.2, lied


@pytest.mark.parametrize("rule", WHOLE)
def test_the_order_of_the_clients_does_not_matter(rule: str) -> None:
    clients, sizes = points(*HONEST, FAR[0]), [3, 1, 4, 1, 5, 9, 2]
    given = {"trim": 0.2, "trusted": GUIDE}
    first = mean(rule, clients, sizes=sizes, **given)
    for seed in range(5):
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed)).tolist()
        shuffled = [clients[i] for i in order], [sizes[i] for i in order]
        found = mean(rule, shuffled[0], sizes=shuffled[1], **given)
        assert found == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_equal_models_stay_to_the_bit_and_counters_are_the_largest(rule: str) -> None:
    one = {"a": torch.randn(5), "seen": torch.tensor(3)}
    clients = [one, {**one, "seen": torch.tensor(7)}, one, one, one]
    options = Average.model_validate({"robust": rule, "weights": "uniform", "trim": 0.2})
    result = average(clients, [1] * 5, one, options, {"a"})
    assert torch.equal(result["a"], one["a"])
    assert int(result["seen"]) == (3 if rule == "krum" else 7)


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_too_few_models_for_krum_stop_the_run(rule: str) -> None:
    with pytest.raises(Stopped, match=r"Krum needs 2 f \+ 3 = 5 models with f = 1 .*there are 4"):
        mean(rule, LINE[:4], trim=0.1)
    assert mean(rule, LINE[:3], trim=0.0)[1] == 0.0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("clients=4", "there are 4 in a round with 4 clients of "),
        ("clients=10 average.trim=0.4", r"2 f \+ 3 = 11 models with f = 4"),
        ("clients=6 per-round=4", "with 4 clients"),
        ("clients=6 min-replies=0.5", "with 3 clients"),
        ("clients=9 average.across=same", "with 4 clients of cnn2@0.5"),
        ("clients=10 average.across=same per-round=9", "with 4 clients"),
        ("clients=10 average.across=same", ""),
        ("clients=5 per-round=5", ""),
        ("clients=5 average.trim=0.0 min-replies=0.6", ""),
    ],
)
def test_a_federation_too_small_for_krum_is_refused_before_round_1(change: str, line: str) -> None:
    half = halves.server(method="fedavg", average__robust="krum", **overrides(change))
    fleet = ("mlp@0.25", "cnn2@0.5")
    clients = [halves.client(k, model=fleet[k % 2]) for k in range(half.config.run.clients)]
    with nullcontext() if not line else pytest.raises(Stopped, match=line) as refused:
        half.begin(clients)
    assert not line or "\n" not in str(refused.value)


ROOT = {"data__public": 0.2, "average__robust": "fltrust"}


def test_the_server_trains_as_long_as_the_median_client_on_labelled_public_images() -> None:
    half = halves.server(method="fedavg", train__epochs=2, **ROOT)
    half.t = 1
    trusted = half.trusted(half.global_spec, half.w, [16, 16, 16, 900])
    assert trusted is not None and trusted.keys() == half.parameter_names
    longer = half.trusted(half.global_spec, half.w, [900, 900, 16, 900])
    moved = [
        math.sqrt(sum(float((w[n] - half.w[n]).square().sum()) for n in trusted))
        for w in (trusted, longer)
    ]
    assert 0 < moved[0] < moved[1]
    again = half.trusted(half.global_spec, half.w, [16])
    assert all(torch.equal(again[name], trusted[name]) for name in trusted)


@pytest.mark.full
@pytest.mark.parametrize("rule", WHOLE)
def test_all_clients_latest_uploads_are_combined_too(rule: str, tmp_path: Path) -> None:
    settings = {"clients": 6, "per_round": 5, "average__robust": rule, "data__public": 0.2}
    run = play(flat(tmp_path, method="fedavg", oca__aggregate="on", **settings))
    assert run.summary["status"] == "completed"
    assert all(tree.finite(value) for value in run.model.values())
