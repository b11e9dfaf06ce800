"""Training steps and what they rest on: random streams, state dicts, drift between clients."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from common import seeds
from common.exchange import tree
from common.exchange.protocol import ModelReply, ModelRequest
from common.journal import Entry
from common.training import fit as loop
from common.training.optimise import make
from deploy.report import read
from server_app.callbacks.drift import measure
from server_app.tracking import numbers
from tests.support.recorded_calls import refusal
from tests.support.tiny import flat, play

fit = partial(loop.fit, precision="fp32")
GOOD = {"w": torch.ones(2, 3), "bn.running_var": torch.ones(2), "n": torch.tensor(1)}
METHOD: Any = SimpleNamespace(change=lambda sent, reply: tree.steps(sent.w, reply.w))


def test_one_step_of_gradient_descent_by_hand() -> None:
    w = nn.Parameter(torch.tensor([2.0]))
    # loss = (w·x − y)², x = 3, y = 4: gradient 2·3·(6 − 4) = 12; w ← 2 − 0.1·12 = 0.8
    batch = torch.tensor([3.0]), torch.tensor([4.0])
    found = fit(make([w], "sgd", 0.1), [batch], lambda x, y: (w * x - y).square().sum())
    assert w.item() == pytest.approx(0.8)
    assert found == {"loss": pytest.approx(4.0), "steps": 1.0}


def test_momentum_by_hand() -> None:
    w = nn.Parameter(torch.tensor([1.0]))
    # loss = w: gradient 1; v = 1, then 1 + 0.5 = 1.5; w = 1 − 0.1 − 0.15 = 0.75
    fit(make([w], "sgd", 0.1, momentum=0.5), [(w.detach(),)] * 2, lambda _: w.sum())
    assert w.item() == pytest.approx(0.75)


def test_clipping_bounds_the_whole_gradient() -> None:
    w = nn.Parameter(torch.zeros(2))
    # gradient (3, 4) of norm 5 becomes (0.6, 0.8)
    fit(make([w], "sgd", 1.0), [(torch.tensor([3.0, 4.0]),)], lambda g: (w * g).sum(), clip=1.0)
    assert w.tolist() == pytest.approx([-0.6, -0.8], abs=1e-5)


def test_two_learning_rates_in_one_loop() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.2}]
    fit(make(groups, "sgd", 1.0), [(torch.ones(1),)], lambda x: (a + b).sum())
    assert (a.item(), b.item()) == pytest.approx((-0.1, -0.2))


def test_nothing_to_train_on_and_a_diverged_model_are_errors() -> None:
    sgd = make([w := nn.Parameter(torch.tensor([1.0]))], "sgd", 1.0)
    with pytest.raises(ValueError, match="no batch to train on"):
        fit(sgd, [], lambda: torch.zeros(()))
    with pytest.raises(FloatingPointError, match="diverged"):
        fit(sgd, [(torch.tensor([float("nan")]),)], lambda x: (w * x).sum())


def test_a_name_is_a_stream_of_its_own() -> None:
    names = [("select", 1), ("select", 2), ("noise", 1), ("select", 1, 2), ("select", 12)]
    draws = {seeds.rng(7, *name).integers(2**62) for name in names}
    draws |= {seeds.rng(8, "select", 1).integers(2**62)}
    assert len(draws) == len(names) + 1


def test_streams_are_what_they_were_in_every_release() -> None:
    # A change here changes every published number.
    assert seeds.key(1, "select", 1) == 1496340550885364099
    assert seeds.rng(1, "select", 1).integers(1000) == 49


def test_a_scope_repeats_and_leaves_no_trace() -> None:
    before = torch.random.get_rng_state()
    with seeds.scope(1, "dropout"):
        first = torch.rand(3)
    with seeds.scope(1, "dropout"):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_weighted_mean_by_hand() -> None:
    states = [{"w": torch.tensor([1.0, 4.0]), "n": torch.tensor(3)}]
    states += [{"w": torch.tensor([3.0, 0.0]), "n": torch.tensor(8)}]
    mean = tree.mean(states, [1, 3])
    assert mean["w"].tolist() == [2.5, 1.0]  # (1·1 + 3·3)/4 and (1·4 + 3·0)/4
    assert mean["n"].item() == 8 and mean["n"].dtype == torch.int64, "the largest of a counter"


def test_equal_states_average_to_themselves_bit_for_bit() -> None:
    state = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(tree.mean([state] * 7, [3, 1, 4, 1, 5, 9, 2])["w"], state["w"])


@pytest.mark.parametrize("weights", [[0, 0], [1], []])
def test_weights_that_cannot_average_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot average|zip"):
        tree.mean([{"w": torch.ones(1)}] * 2, weights)


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
    assert line in refusal(tree.check_like, state, GOOD, "w")
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


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_one_number_not_finite_is_found(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "PIECE", 8)
    assert all(map(tree.finite, (torch.ones(4, 5), torch.ones(0), torch.tensor([1 << 40]))))
    for place in (0, 7, 8, 19):
        w = torch.ones(4, 5)
        w.view(-1)[place] = number
        assert not tree.finite(w), place


def drift(*updates: list[float]) -> float | None:
    """Of clients that all start from 0 and move so."""
    sent: Any = {k: ModelRequest(w={"w": torch.zeros(len(x))}) for k, x in enumerate(updates)}
    replies = [ModelReply(w={"w": torch.tensor(x)}) for x in updates]
    good: Any = [(SimpleNamespace(k=k), reply) for k, reply in enumerate(replies)]
    return measure(METHOD, sent, good)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], 0.0),
        ([[1.0, 0.0], [0.0, 3.0]], 1 / 2),
        ([[1.0, 0.0], [-1.0, 0.0]], 1.0),
        ([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]], 1 - 13 / 3 / 7),  # Σ Δ_k = (3, 2)
        # two architectures: 10 − 10/2 of two at right angles, and 0 of 8 of two that move alike
        ([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0]], 5 / 18),
        ([[1.0, 0.0], [2.0, 0.0, 0.0]], None),
        ([[0.0, 0.0], [0.0, 0.0]], None),
    ],
)
def test_by_hand(
    updates: list[list[float]], expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = expected if expected is None else pytest.approx(expected)
    assert drift(*updates) == same
    monkeypatch.setattr(tree, "PIECE", 1)
    assert drift(*updates) == same, "in pieces"


def test_a_run_measures_it_and_has_the_same_bits(tmp_path: Path) -> None:
    settings = {"method": "fedavg", "fleet": "mlp@0.25"}
    plain = play(flat(tmp_path / "plain", **settings))
    run = play(flat(tmp_path / "run", **settings, score__drift=True))
    told = [entry["drift"] for entry in run.journal[1:]]
    assert all(0 < drift < 1 for drift in told)
    assert run.summary["drift"] == pytest.approx(sum(told) / 2)
    entry = Entry.read(json.dumps(run.journal[1]))
    assert read.scalars(entry)["drift"] == numbers.scalars(entry)["drift"] == told[0]
    assert run.weights == plain.weights and "drift" not in plain.summary


def test_where_no_weights_come_back_there_is_none(tmp_path: Path) -> None:
    run = play(flat(tmp_path, method="local", score__drift=True))
    assert "drift" not in run.summary and run.journal[1]["drift"] is None
