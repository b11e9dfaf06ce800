"""FedNova: whoever takes more steps pulls no harder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from common.methods.fednova import Up
from common.tree import parameters_only
from server_app.method import Ups
from tests.support.battery import Changing
from tests.support.halves import client, server, task
from tests.support.scalar import PLAIN, descend, result
from tests.support.tiny import Run, TinyRun, flat, play

PLAIN_SGD = {"train__epochs": 1, "train__momentum": 0.0}


def step(sizes: tuple[int, ...], sent: tuple[float, ...], **changes: Any) -> float:
    """w after a round from w = 0, in batches of 16: as many steps as a client has 16 samples."""
    fednova = server(method="fednova", average__weights="uniform", **PLAIN_SGD | changes)
    fednova.net, fednova.w = torch.nn.Linear(1, 1, bias=False), {"weight": torch.zeros(1, 1)}
    fednova.task = task(**PLAIN_SGD | changes)
    ups = [
        (client(k, n), Up(w={"weight": torch.tensor([[w]])}))
        for k, (n, w) in enumerate(zip(sizes, sent, strict=True))
    ]
    fednova.step(1, Ups.of(ups))
    return float(fednova.w["weight"])


def test_a_step_by_hand() -> None:
    # τ = (1, 3), p = ½: Σ p a = 2, Σ p d = ½ (−1 − 2) = −1.5, w = 3; FedAvg has 3.5
    assert step((16, 48), (1.0, 6.0)) == pytest.approx(3.0)
    assert step((16, 16), (1.0, 6.0)) == 3.5


def test_momentum_counts_steps_for_more() -> None:
    assert task(**PLAIN_SGD | {"train__momentum": 0.9}).effective_steps(32) == pytest.approx(2.9)
    adam = {"train__momentum": 0.9, "train__optimizer": "adam"}
    assert task(**PLAIN_SGD | adam).effective_steps(32) == 2.0
    # a = (1, 2.9): Σ p a = 1.95, Σ p d = ½ (−1 − 2) = −1.5, w = 2.925
    assert step((16, 32), (1.0, 5.8), train__momentum=0.9) == pytest.approx(2.925)


def test_a_robust_mean_is_of_the_normalised_models() -> None:
    # Σ p a = 7/3, so the models are 7/3 · (1, 6/3, 9/3), with median 14/3
    median = step((16, 48, 48), (1.0, 6.0, 9.0), average__robust="median")
    assert median == pytest.approx(14 / 3)


def test_a_whole_round_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    descend(monkeypatch, (1.0, 1.0, 1.0, 1.0))
    settings = {**PLAIN, "train__steps": 0, "train__epochs": 1, "train__batch_size": 8}
    uneven = {"data__partition": "quantity_dirichlet", "average__weights": "uniform"}
    played = run(method="fednova", rounds=1, **settings, **uneven)
    n = [c["n"] for c in played.journal[0]["clients"]]
    steps = [task(**settings).steps(size) for size in n]
    assert len(set(steps)) > 1
    # w_k = 1 − .9^τ; w = (mean τ) · mean of w_k / τ
    d = [(1 - 0.9**tau) / tau for tau in steps]
    assert result(played) == pytest.approx(sum(steps) / 4 * sum(d) / 4, abs=1e-6)


def test_steps_that_a_client_claims_are_not_believed(tmp_path: Path) -> None:
    def lie(up: Up) -> dict[str, Any]:
        return {"metrics": {**up.metrics, "steps": 1e6}}

    def play_in(folder: Path, **grid: Any) -> TinyRun:
        settings = flat(folder, method="fednova", data__partition="quantity_dirichlet", rounds=1)
        made = grid["by"](4, settings, workers=0) if grid else None
        return play(settings, made)

    honest, lied = play_in(tmp_path / "a"), play_in(tmp_path / "b", by=Changing.by(Up, lie))
    assert lied.weights == honest.weights


@pytest.mark.parametrize("across", ["layerwise", "same"])
def test_with_one_architecture_the_scheme_changes_nothing(across: str, run: Run) -> None:
    some = {"fleet": "cnn2@0.5", "data__partition": "quantity_dirichlet"}
    alone = run(method="fednova", **some)
    apart = run(method="fednova", average__across=across, **some)
    assert [e["accuracy"] for e in apart.journal] == [e["accuracy"] for e in alone.journal]


def test_across_depths_a_layer_is_normalised_over_those_who_have_it() -> None:
    settings = {**PLAIN_SGD, "fleet": "cnn2@0.5,cnn3@0.5", "average__across": "layerwise"}
    fednova = server(method="fednova", average__weights="uniform", **settings)
    clients = [
        client(k, n, model=model)
        for k, (n, model) in enumerate([(16, "cnn2@0.5"), (48, "cnn3@0.5"), (32, "cnn3@0.5")])
    ]
    fednova.begin(clients)
    (before,) = fednova.models.values()
    before = {name: torch.zeros_like(value) for name, value in before.items()}
    fednova.models = {"cnn3@0.5": before}
    told = [
        (fednova.task.expected(c.model), w) for c, w in zip(clients, (1.0, 6.0, 4.0), strict=True)
    ]
    sent = [{name: torch.full(like.shape, w) for name, like in own.items()} for own, w in told]
    fednova.step(1, Ups.of([(c, Up(w=w)) for c, w in zip(clients, sent, strict=True)]))
    (after,) = fednova.models.values()
    parameters = parameters_only(fednova.build("cnn3@0.5"))
    shared, deep = parameters & sent[0].keys(), parameters - sent[0].keys()
    assert shared and deep
    for name in shared:  # τ = (1, 3, 2): mean 2, Σ p d = ⅓ (1 + 2 + 2)
        assert torch.allclose(after[name], torch.tensor(10 / 3)), name
    for name in deep:  # τ = (3, 2): mean 2.5, Σ p d = ½ (2 + 2)
        assert torch.allclose(after[name], torch.tensor(5.0)), name
