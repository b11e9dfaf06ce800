"""Modified FedFTG: average, then distil on noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file

from server_app.methods.fedftg_noise import towards
from tests.support.tiny import TinyRun

NOISE = {
    "noise__epochs": 1,
    "noise__batches": 6,
    "noise__batch_size": 16,
}
TINY = {"method": "fedftg-noise", "noise__lr": 0.05, **NOISE}
STILL = {**TINY, "noise__lr": 1e-38}  #: distillation that moves nothing


def weights(run: TinyRun) -> dict[str, torch.Tensor]:
    return load_file(run.folder / "model.safetensors")


@pytest.mark.parametrize("clients", ["fedavg", "fedprox"])
def test_undistilled_it_is_fedavg_or_fedprox(clients: str, run: Callable[..., TinyRun]) -> None:
    mu = 0.5 if clients == "fedprox" else 0.0
    ours = run(**STILL, fedftg_noise__mu=mu)
    settings = {"average__weights": "uniform"} | ({"fedprox__mu": mu} if mu else {})
    torch.testing.assert_close(
        weights(ours), weights(run(method=clients, **settings)), rtol=0, atol=1e-12
    )


def test_one_client_teaches_its_own_average_nothing(run: Callable[..., TinyRun]) -> None:
    ours = run(**TINY, clients=1, rounds=1)
    fedavg = run(method="fedavg", clients=1, rounds=1)
    torch.testing.assert_close(weights(ours), weights(fedavg), rtol=0, atol=1e-5)


def test_a_step_towards_the_mean_by_hand() -> None:
    w = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    mean = {"a": torch.tensor([3.0, 0.0]), "n": torch.tensor(5)}
    half, twice = towards(w, mean, 0.5), towards(w, mean, 2.0)
    assert half["a"].tolist() == [2.0, 1.0] and half["n"].item() == 5
    assert twice["a"].tolist() == [5.0, -2.0]
    assert towards(w, mean, 1.0) is mean


def test_a_long_step_leaves_no_negative_variance() -> None:
    w, mean = {"bn.running_var": torch.tensor([2.0])}, {"bn.running_var": torch.tensor([0.5])}
    assert towards(w, mean, 2.0)["bn.running_var"].item() == 0.0
