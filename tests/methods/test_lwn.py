"""LWN: light-weight networks travel, own models stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file

from client_app.methods.lwn import LWN
from common.methods.lwn import Up
from tests.support.tiny import TinyRun

NOISE = {"noise__epochs": 1, "noise__batches": 4, "noise__batch_size": 16}
TINY = {"method": "lwn", "noise__lr": 0.05, **NOISE}
STILL = {"noise__lr": 1e-38}  #: distillation that moves nothing


def weights(run: TinyRun) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "model.safetensors")


def test_averaged_and_undistilled_it_is_fedorion_in_which_everybody_does_dml(
    run: Callable[..., TinyRun],
) -> None:
    lwn = run(**{**TINY, **STILL}, lwn__init="average")
    fedorion = run(method="fedorion", fedorion__selective=False, fedorion__distill=False)
    torch.testing.assert_close(weights(lwn), weights(fedorion), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["sum", "none"])
def test_one_client_s_small_network_is_taken_as_it_is(
    norm: str, run: Callable[..., TinyRun]
) -> None:
    alone = {**TINY, "clients": 1, "rounds": 1, "lwn__init": "average"}
    distilled = run(**alone, noise__max_norm=norm)
    torch.testing.assert_close(
        weights(distilled), weights(run(**{**alone, **STILL})), rtol=0, atol=1e-5
    )


def test_the_first_server_starts_from_what_it_sent(run: Callable[..., TinyRun]) -> None:
    first = run(**{**TINY, **STILL}, rounds=1)
    again = run(**{**TINY, **STILL}, rounds=1, train__epochs=1)
    torch.testing.assert_close(weights(first), weights(again), rtol=0, atol=1e-12)


def test_only_the_small_network_travels() -> None:
    assert set(Up.model_fields) == {"experiment", "t", "k", "metrics", "w"}
    assert LWN.receives.model_fields.keys() == {"experiment", "t", "w"}


def test_own_models_are_kept_over_rounds_and_learn(run: Callable[..., TinyRun]) -> None:
    accuracies = [client["accuracy"] for client in run(**TINY, rounds=3).summary["clients"]]
    assert min(accuracies) > 0.6
    models = [client["model"] for client in run(**TINY, rounds=1).journal[0]["clients"]]
    assert models == ["mlp@0.25", "cnn2@0.5", "mlp@0.25", "cnn2@0.5"]
