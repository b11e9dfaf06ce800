"""MOON: features near the global model's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from client_app.methods.moon import Memory, contrast
from common import models
from common.models.classifier import Projected
from common.parse import defaults, parse
from tests.support.scalar import kept
from tests.support.tiny import TinyRun

Run = Callable[..., TinyRun]


def test_the_contrast_by_hand() -> None:
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    # cosines 1 and 0 over τ = ½: log(1 + e⁻²)
    assert contrast(near, near, far, 0.5).item() == pytest.approx(0.12693, abs=1e-5)
    assert contrast(3 * near, near, far, 0.5).item() == pytest.approx(0.12693, abs=1e-5)


def test_where_past_and_global_model_are_one_nothing_pulls() -> None:
    q = torch.tensor([[1.0, 2.0]], requires_grad=True)
    same = torch.tensor([[0.5, -1.0]])
    value = contrast(q, same, same, 0.5)
    value.backward()
    assert value.item() == pytest.approx(math.log(2))
    assert q.grad is not None and q.grad.abs().max() < 1e-7


@pytest.mark.parametrize("projection", ["on", "off"])
def test_with_mu_zero_it_is_fedavg_of_the_same_networks(projection: str, run: Run) -> None:
    fedavg = run(method="fedavg", projection=projection)
    moon = run(method="moon", moon__mu=0.0, projection=projection)
    assert moon.weights == fedavg.weights
    assert moon.timeless == fedavg.timeless


def test_the_first_round_is_fedavgs_to_rounding(run: Run) -> None:
    settings = {"rounds": 1, "average__bn_buffers": False}
    fedavg, moon = (run(method=m, projection="on", **settings) for m in ("fedavg", "moon"))
    ours, theirs = (load_file(each.folder / "model.safetensors") for each in (moon, fedavg))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)
    losses = [each.journal[1]["metrics"]["client_loss"] for each in (moon, fedavg)]
    assert losses[0] - losses[1] == pytest.approx(math.log(2), abs=1e-4)
    assert run(method="moon", rounds=2).weights != run(method="fedavg", projection="on").weights


def test_the_past_is_what_the_client_left_in_its_last_round(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client_app.participant import Participant

    recalled: list[tuple[int, Any]] = []
    recall = Participant.recall

    def watching(self: Participant, t: int, kind: Any) -> Any:
        found = recall(self, t, kind)
        if self.k == 0:
            recalled.append((t, found))
        return found

    monkeypatch.setattr(Participant, "recall", watching)
    played = run(method="moon", rounds=2)
    (first, nothing), (second, past) = recalled
    assert (first, nothing, second) == (1, None, 2)
    held = Memory.load(kept(played.folder, 1, 0, Memory.kind)).w
    assert all(torch.equal(past.w[name], held[name]) for name in held)


def test_a_projection_is_part_of_the_network() -> None:
    plain = models.build("lenet5", (1, 32, 32), 10, seed=1)
    net = models.build("lenet5", (1, 32, 32), 10, seed=1, projection=True)
    assert isinstance(net, Projected) and net.features(torch.zeros(2, 1, 32, 32)).shape == (2, 256)
    d = plain.head.in_features
    more = d * d + d + d * 256 + 256 + 256 * 10 + 10 - (d * 10 + 10)
    assert models.count(net) == models.count(plain) + more
    own = net.state_dict()
    for name, value in plain.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(own[f"base.{name}"], value), name
    assert net.spec == plain.spec == "lenet5"


def test_every_node_of_a_run_has_it_or_none(run: Run) -> None:
    played = run(method="moon", rounds=1, average__across="same")
    parameters = {c["model"]: c["parameters"] for c in played.journal[0]["clients"]}
    for spec, count in parameters.items():
        assert count == models.parameters(spec, (1, 8, 8), 3, projection=True)
    assert played.summary["failures"] == []


@pytest.mark.parametrize("method", ["fedin", "fedgkt"])
def test_methods_that_cut_networks_apart_refuse_it(method: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse({**defaults(), "method": method, "projection": "on"})
    assert str(refused.value) == (
        f'projection = "on" is not allowed with method = "{method}", which cuts networks apart; '
        'allowed: "off"'
    )
