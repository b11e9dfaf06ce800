"""Heterogeneous FedFL: taught on data, teaching on noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny import TinyRun

NOISE = {
    "noise__epochs": 1,
    "noise__batches": 6,
    "noise__batch_size": 16,
}
TINY = {"method": "hetfedfl", "noise__lr": 0.05, **NOISE}


def weights(run: TinyRun) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "model.safetensors")


@pytest.mark.parametrize("norm", ["sum", "none"])
def test_with_one_client_combine_is_ensemble(norm: str, run: Callable[..., TinyRun]) -> None:
    alone = {**TINY, "clients": 1, "noise__max_norm": norm}
    combine = run(**alone, hetfedfl__transfer="combine")
    ensemble = run(**alone, hetfedfl__transfer="ensemble")
    torch.testing.assert_close(weights(combine), weights(ensemble), rtol=0, atol=1e-5)


def test_with_two_clients_combine_is_not_ensemble(run: Callable[..., TinyRun]) -> None:
    combine = run(**TINY, hetfedfl__transfer="combine")
    ensemble = run(**TINY, hetfedfl__transfer="ensemble")
    assert combine.weights != ensemble.weights


def test_nothing_is_averaged(run: Callable[..., TinyRun]) -> None:
    # A server that does not step keeps its first model, whatever the clients learn.
    still = {**TINY, "fleet": "mlp@0.25", "noise__lr": 1e-38}
    one, two = run(**still, rounds=1), run(**still, rounds=2)
    torch.testing.assert_close(weights(one), weights(two), rtol=0, atol=1e-12)


def test_the_server_teaches_the_clients(run: Callable[..., TinyRun]) -> None:
    # In round 2 the clients hear a server that has stepped, or one that has not.
    loud, still = run(**TINY), run(**{**TINY, "noise__lr": 1e-38})
    assert loud.journal[1]["client_metrics"] == still.journal[1]["client_metrics"]
    assert loud.journal[2]["client_metrics"] != still.journal[2]["client_metrics"]


def test_own_models_learn_from_their_data(run: Callable[..., TinyRun]) -> None:
    accuracies = [client["accuracy"] for client in run(**TINY, rounds=3).summary["clients"]]
    assert min(accuracies) > 0.6
