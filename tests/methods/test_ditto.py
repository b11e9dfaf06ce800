"""Ditto: FedAvg's global model, and personal models between it and local training."""

from pathlib import Path
from typing import Any

import pytest

from client_app.methods.ditto import ClientState
from client_app.participant import Participant
from common import models
from common.exchange.records import StateDict
from common.model_file import write
from common.settings.parse import parse
from common.training import tree
from tests.support.scalar import PLAIN, descend, result
from tests.support.tiny import Run, TinyRun, flat
from tests.support.weights import own_models, same

HAND = {"method": "ditto", "clients": 2, **PLAIN}


def personal(run: TinyRun, t: int) -> list[StateDict]:
    """Return the clients' v_k of round t."""
    return own_models(run, t, ClientState, "v")


@pytest.mark.parametrize(
    ("strength", "first", "second"),
    [
        (0.0, (0.0, 0.0, 0.0), (0.76, 1.3756, 1.874236)),
        (0.1, None, (0.756, 1.36201, 1.847847)),
        (1.0, (0.0, 0.0684, 0.16758), (0.72, 1.2492, 1.643292)),
    ],
)
def test_three_rounds_by_hand(
    strength: float, first: Any, second: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # f_k = ½ (w − a_k)², a = (0, 4), η = 0.1, two steps: w is FedAvg's for every λ.
    descend(monkeypatch, (0.0, 4.0))
    played = run(**HAND, rounds=3, ditto__lambda_prox=strength)
    assert result(played) == pytest.approx(0.937118, abs=1e-6)
    for k, expected in enumerate((first, second)):
        found = [float(personal(played, t)[k]["w"]) for t in (1, 2, 3)]
        assert expected is None or found == pytest.approx(expected, abs=1e-5)


def test_more_epochs_move_the_personal_model_only(run: Run) -> None:
    runs = [run(method="ditto", rounds=2, ditto__epochs=n) for n in (0, 1, 2, 3)]
    assert len({one.weights for one in runs}) == 1
    usual, fewer, equal, more = (personal(one, 2)[0] for one in runs)
    assert same(usual, equal), "train.epochs is 2"
    assert not same(usual, fewer) and not same(usual, more)


@pytest.mark.parametrize("across", ["none", "same"])
def test_without_a_pull_personal_models_are_those_of_local_training(
    across: str, run: Run, tmp_path: Path
) -> None:
    for spec in ("mlp@0.25", "cnn2@0.5"):
        start = tree.snapshot(models.build(spec, (1, 8, 8), 3, seed=7))
        write(tmp_path / f"{spec}.safetensors", start)
    fleet = "mlp@0.25" if across == "none" else "mlp@0.25,cnn2@0.5"
    settings = {"fleet": fleet, "weights": str(tmp_path / "{model}.safetensors"), "rounds": 3}
    settings |= {"per_round": 2, "data__partition": "quantity_dirichlet"}
    ditto = run(**settings, method="ditto", ditto__lambda_prox=0.0, average__across=across)
    local = run(**settings, method="local")
    assert same(personal(ditto, 3), own_models(local, 3))
    own, alone = ([s["accuracy"] for s in one.journal[-1]["scores"]] for one in (ditto, local))
    assert own == alone


def test_a_personal_model_starts_from_the_servers_first_weights(tmp_path: Path, run: Run) -> None:
    p = Participant(
        parse(flat(tmp_path, method="ditto")), {"partition-id": 1, "num-partitions": 4}, "e"
    )
    drawn = models.build("mlp@0.25", (1, 8, 8), 3, seed=1, name=("init", "global"))
    assert p.spec != p.global_spec == "mlp@0.25"
    assert same(tree.snapshot(p.initial(p.global_spec)), tree.snapshot(drawn))
    played = run(method="ditto", rounds=1, per_round=1)
    scores = played.journal[1]["scores"]
    assert all(s["accuracy"] is not None and s["accuracy_global"] is not None for s in scores)
