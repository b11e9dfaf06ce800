"""The server's optimizer: hand numbers, FedAvg as a special case, moments in the checkpoint."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from common.parse import parse
from common.settings.options import Average
from server_app.aggregation.optimizer import Moments, step
from server_app.storage import checkpoint
from tests.support.recorded_calls import refusal
from tests.support.tiny import flat, play

TAU, LR = 0.5, 0.1
DELTAS = (2.0, -1.0)


def options(name: str, **more: float) -> Average:
    given = {"server_optimizer": name, "server_lr": LR, "server_tau": TAU, **more}
    return Average(**given)  # type: ignore[arg-type]


def walked(chosen: Average) -> list[float]:
    """Return the changes of a parameter in rounds with the mean steps of ``DELTAS``."""
    moments: Moments = {}
    w, changes = torch.zeros(1, dtype=torch.float64), list[float]()
    for delta in DELTAS:
        before = {"w": w, "counter": torch.tensor(3)}
        mean = {"w": w + delta, "counter": torch.tensor(5)}
        after, moments = step(chosen, before, mean, moments, {"w"})
        assert int(after["counter"]) == 5, "a buffer takes the mean"
        changes.append(float(after["w"] - w))
        w = after["w"]
    return changes


def by_hand(name: str) -> list[float]:
    """Return the same for β₁ = 0.5, β₂ = 0.9 and τ² = 0.25."""
    m1, m2 = 0.5 * 2, 0.5 * 1 + 0.5 * -1
    squares = {
        "adagrad": (0.25 + 4, 0.25 + 4 + 1),
        "adam": (0.9 * 0.25 + 0.1 * 4, 0.9 * 0.625 + 0.1 * 1),
        "amsgrad": (0.625, max(0.625, 0.6625)),
        "yogi": (0.25 + 0.1 * 4, 0.65 + 0.1 * 1),  # v < Δ² in both rounds
    }[name]
    means = (2, -1) if name == "adagrad" else (m1, m2)
    pairs = zip(means, squares, strict=True)
    return [LR * m / (math.sqrt(v) + TAU) for m, v in pairs]


@pytest.mark.parametrize("name", ["adagrad", "adam", "amsgrad", "yogi"])
def test_two_steps_by_hand(name: str) -> None:
    found = walked(options(name, server_beta1=0.5, server_beta2=0.9))
    assert found == pytest.approx(by_hand(name), abs=1e-12)


def test_amsgrad_keeps_the_largest_square() -> None:
    chosen = options("amsgrad", server_beta1=0.0, server_beta2=0.0)
    found = walked(chosen)  # v = 4, then 1: the step goes on with 4
    assert found == pytest.approx([LR * 2 / 2.5, LR * -1 / 2.5], abs=1e-12)


def test_sgd_with_momentum_and_the_rates_by_optimizer() -> None:
    assert walked(options("sgd", server_momentum=0.5)) == pytest.approx([0.2, 0.1 * (1 - 1)])
    assert walked(options("sgd", server_lr=0.0)) == [2.0, -1.0]
    rates = [options(name, server_lr=0.0).server_rate for name in ("sgd", "adam")]
    assert rates == [1.0, 0.01]


def test_a_parameter_that_no_client_has_stays() -> None:
    w, moments = torch.ones(2), {"m": {"w": torch.ones(2)}, "v": {"w": torch.ones(2)}}
    after, kept = step(options("adam"), {"w": w}, {"w": w}, moments, {"w"})
    assert after["w"] is w and kept == moments


def given(folder: Path, **more: Any) -> dict[str, Any]:
    return flat(folder, **{"method": "fedavg", "rounds": 3, **more})


@pytest.mark.parametrize("across", ["none", "same"])
def test_sgd_with_rate_1_is_fedavg_and_momentum_is_not(across: str, tmp_path: Path) -> None:
    same = {"average__across": across, "fleet": "mlp@0.25,cnn2@0.25"}
    plain = play(given(tmp_path / "a", **same))
    sgd = play(given(tmp_path / "b", **same, average__server_optimizer="sgd"))
    assert sgd.weights == plain.weights
    state: Any = checkpoint.load(tmp_path / "b").state
    assert not any(state.get("inner", state)["moments"].values())
    momentum = {"average__server_optimizer": "sgd", "average__server_momentum": 0.9}
    assert play(given(tmp_path / "c", **same, **momentum)).weights != plain.weights


@pytest.mark.parametrize(
    "more",
    [
        {"average__across": "none"},
        {"average__across": "same", "fleet": "mlp@0.25,cnn2@0.25"},
        {"oca__aggregate": "on"},
        {"method": "scaffold"},
    ],
    ids=["one model", "same", "oca", "scaffold"],
)
def test_a_resumed_run_goes_on_with_its_moments(more: dict[str, Any], tmp_path: Path) -> None:
    adam = {**more, "average__server_optimizer": "adam"}
    whole = play(given(tmp_path / "whole", **adam))
    first = given(tmp_path / "parts", **{**adam, "rounds": 1})
    play(first)
    assert play({**first, "rounds": 3, "resume": True}).weights == whole.weights
    assert whole.weights != play(given(tmp_path / "plain", **more)).weights


def test_the_noisy_mean_is_what_the_optimizer_steps_towards(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"privacy__mode": "local", "average__server_optimizer": "yogi"}
    run = play(given(tmp_path, **private))
    assert run.journal[-1]["privacy"]["epsilon"] > 0


def test_where_nothing_is_averaged_it_is_refused() -> None:
    flat_ = flat(Path("out"), method="fedmd", average__server_optimizer="adam", data__public=0.2)
    line = refusal(parse, flat_)
    assert 'average.server-optimizer = "adam" is not allowed with' in line
