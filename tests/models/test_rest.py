"""A network without memory between two uses is the same network when it is used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from common.models import build
from common.models.rest import Rest
from common.tree import parameters_only, snapshot
from server_app.methods.fedavg import FedAvg
from server_app.talk.channel import PlainChannel
from tests.support.tiny import flat, play


def held(net: nn.Module) -> int:
    """Bytes of its parameters and their gradients."""
    found = [each for p in net.parameters() for each in (p, p.grad) if each is not None]
    return sum(each.untyped_storage().nbytes() for each in found)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_gives_its_memory_back_and_has_it_again(layout: torch.memory_format) -> None:
    net = build("cnn2", (3, 8, 8), 4, seed=1).to(memory_format=layout)  # type: ignore[call-overload]
    x, w, rest = torch.rand(5, 3, 8, 8), snapshot(net), Rest(net)
    net(x).sum().backward()
    before, strides, taken = net(x), [p.stride() for p in net.parameters()], held(net)
    ours, names = list(net.parameters()), parameters_only(net)
    rest.begin()
    rest.begin()
    assert held(net) == 4 * len(ours) < taken / 100
    assert parameters_only(net) == names
    assert [p.shape for p in ours] == [w[name].shape for name, _ in net.named_parameters()]
    assert bool(net(x).isnan().all())  # nobody takes them for weights
    assert rest.wake() and not rest.wake()
    net.load_state_dict(w)
    assert torch.equal(net(x), before) and held(net) == taken / 2
    assert [p.stride() for p in net.parameters()] == strides
    assert all(now is p for now, p in zip(net.parameters(), ours, strict=True))


@pytest.mark.parametrize("average", ["none", "same"])
def test_a_methods_network_rests_while_clients_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: str
) -> None:
    made, inside = list[FedAvg](), list[int]()
    prepare = FedAvg.prepare

    def prepared(self: FedAvg) -> None:
        prepare(self)
        made.append(self)

    def exchanged(*given: Any) -> Any:
        t = given[-1]
        inside.extend(held(method._rest.net) for method in made if t > 0)  # the census is before
        return ask(*given)

    ask = PlainChannel.exchange
    monkeypatch.setattr(FedAvg, "prepare", prepared)
    monkeypatch.setattr(PlainChannel, "exchange", exchanged)
    changes = {"fleet": "cnn2@0.5"} if average == "none" else {"average.across": average}
    config = flat(tmp_path / "rests", method="fedavg") | changes | {"score.clients-every": 1}
    rests = play(config)
    whole = sum(p.numel() for p in made[0].net.parameters()) * 4
    assert len(inside) >= 4 and max(inside) < whole / 100
    assert bool(torch.equal(snapshot(made[0].net)["head.weight"], made[0].w["head.weight"]))
    monkeypatch.setattr(Rest, "begin", lambda self: None)
    awake = play(config | {"out": str(tmp_path / "awake")})
    assert awake.weights == rests.weights and awake.timeless == rests.timeless
