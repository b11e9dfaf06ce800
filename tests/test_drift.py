"""How far clients train apart, on numbers that one can do by hand, and in a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common import tree
from common.journal import Entry
from common.parse import parse
from common.protocol import Model, Trained
from deploy.report import read
from server_app.drift import measure
from server_app.track import numbers
from tests.support.tiny import flat, play

METHOD: Any = SimpleNamespace(change=lambda sent, up: tree.steps(sent.w, up.w))


def drift(*updates: list[float]) -> float | None:
    """Of clients that all start from 0 and move so."""
    sent: Any = {k: Model(w={"w": torch.zeros(len(x))}) for k, x in enumerate(updates)}
    good: Any = [
        (SimpleNamespace(k=k), Trained(w={"w": torch.tensor(x)})) for k, x in enumerate(updates)
    ]
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
def test_by_hand(updates: list[list[float]], expected: float | None) -> None:
    assert drift(*updates) == (expected if expected is None else pytest.approx(expected))


def test_a_tensor_that_comes_in_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "PIECE", 1)
    assert drift([2.0, 0.0], [0.0, 1.0], [1.0, 1.0]) == pytest.approx(1 - 13 / 3 / 7)


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


def test_it_does_not_go_with_privacy(tmp_path: Path) -> None:
    private = {"method": "fedavg", "privacy__mode": "central", "privacy__noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=r"score.drift = true is not allowed .* allowed: false"):
        parse(flat(tmp_path, **private, score__drift=True))
