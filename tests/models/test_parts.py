"""Networks in parts: exits, splits, ensembles, memory that is given back, what they cost."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common import models, seeds
from common.exchange.tree import check_nested, parameters_only, snapshot
from common.models import Split, build
from common.models.classifier import Classifier
from common.models.ensemble import Ensemble
from common.models.exits import Exit, Exits, separable
from common.models.offloaded import OffloadedModel
from common.models.parts import batchnorm, buffers, last, layers
from server_app.messaging.channel import PlainChannel
from server_app.methods.fedavg import FedAvg
from tests.support.cost import macs
from tests.support.recorded_calls import record_calls
from tests.support.tiny import flat, play


def net(spec: str, side: int = 8) -> Exits:
    return models.build(spec, (1, side, side), 3, seed=1)  # type: ignore[return-value]


@pytest.mark.parametrize("base", ["resnet10-exits{}@0.0625", "resnet18-linear{}@0.0625"])
def test_every_depth_is_a_part_of_the_deeper_ones(base: str) -> None:
    nets = {base.format(d): net(base.format(d), 32) for d in (1, 2, 3, 4)}
    states = {spec: each.state_dict() for spec, each in nets.items()}
    assert check_nested(states) == base.format(4)
    whole, x = nets[base.format(4)].eval(), torch.rand(2, 1, 32, 32)
    for d, part in enumerate(nets.values(), start=1):
        part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
        for ours, theirs in zip(part.eval().each(x), whole.each(x)[:d], strict=True):
            assert torch.equal(ours, theirs)
        assert models.exits(list(nets)[d - 1]) == (base.replace("{}", ""), d)
        assert len(part.within()) == d


def test_its_logits_are_the_mean_of_the_exits_and_each_is_a_classifier() -> None:
    three, x = net("cnn4-exits3@0.5").eval(), torch.rand(5, 1, 8, 8)
    each = three.each(x)
    assert [tuple(z.shape) for z in each] == [(5, 3)] * 3
    assert torch.allclose(three(x), (each[0] + each[1] + each[2]) / 3)
    assert torch.equal(three.head(three.features(x)), each[2])
    for (name, part), z, i in zip(three.within().items(), each, (1, 2, 3), strict=True):
        assert name == f"exit{i}" and torch.equal(part(x), z)


def test_exits_have_the_layers_of_the_first_authors_code_and_gates_for_any_side() -> None:
    # SepConv(a, b): 9a + a² + 2a + 9a + ab + 2b
    assert models.count(separable(64, 128)) == 9 * 64 + 64**2 + 128 + 9 * 64 + 64 * 128 + 256
    widths = (64, 128, 256, 512)
    gate, path = models.count(separable(64, 64)) + 128, 0
    for a, b in ((64, 128), (128, 256), (256, 512)):
        path += models.count(separable(a, b))
    assert models.count(Exit(widths, 100, "bottleneck")) == gate + path + 513 * 100
    assert models.count(Exit(widths[3:], 100, "bottleneck")) == 513 * 100
    assert models.count(Exit(widths, 100, "linear")) == 65 * 100
    leave = Exit((4, 8), 3, "bottleneck").eval()
    for side in (1, 5, 8):
        maps = torch.rand(2, 4, side, side)
        assert leave(maps).shape == (2, 3)
    torch.nn.init.zeros_(leave.gate[1].weight)  # type: ignore[index,arg-type]
    # σ(0) = ½ everywhere
    assert torch.allclose(leave.features(maps), leave.path(maps / 2).mean((2, 3)))


RESNETS = [f"resnet{depth}" for depth in (10, 14, 18, 22, 26)]
CNNS = ["cnn2", "cnn3", "cnn4"]


def network(spec: str, shape: tuple[int, int, int]) -> Split:
    return build(spec, shape, 10, seed=0)  # type: ignore[return-value]


def keys(spec: str, shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {key: tuple(value.shape) for key, value in network(spec, shape).state_dict().items()}


@pytest.mark.parametrize("spec", RESNETS)
def test_s_in_and_s_out_are_those_of_table_vi(spec: str) -> None:
    with torch.device("meta"):
        model = network(spec, (3, 32, 32))
        s_in = model.extractor(torch.zeros(16, 3, 32, 32))
        s_out = model.intermediate(s_in)
        assert model.classifier(s_out).shape == (16, 10)
        assert model.extractor(torch.zeros(2, 3, 28, 28)).shape == (2, 64, 7, 7)
    assert s_in.shape == (16, 64, 8, 8)
    assert s_out.shape == (16, 512, 1, 1)
    assert s_in.numel() + s_out.numel() == 16 * (4096 + 512) == 73_728


@pytest.mark.parametrize("spec", [*CNNS, "resnet10@0.125", "resnet26@0.125"])
def test_the_three_parts_in_turn_are_the_network(spec: str) -> None:
    model = network(spec, (3, 32, 32)).eval()
    x = torch.randn(3, 3, 32, 32, generator=seeds.stream(0, "x"))
    with torch.no_grad():
        s_in = model.extractor(x)
        s_out = model.intermediate(s_in)
        assert torch.equal(model.classifier(s_out), model(x))
    if spec in CNNS:
        assert s_in.shape == (3, 32, 16, 16) and s_out.shape == (3, 64, 8, 8)


@pytest.mark.parametrize("family", [RESNETS, CNNS])
def test_shallow_keys_are_deep_keys_of_the_same_shape(family: list[str]) -> None:
    for shallow, deep in pairwise(family):
        few, many = keys(shallow, (3, 32, 32)), keys(deep, (3, 32, 32))
        assert few.items() < many.items()


@pytest.mark.parametrize("spec", ["resnet14", "cnn3"])
def test_a_key_is_in_the_part_that_trains_it(spec: str) -> None:
    """Only the intermediate keys get a gradient when s_out is compared and s_in is given."""
    model = network(spec + "@0.125", (1, 32, 32))
    s_in = model.extractor(torch.zeros(2, 1, 32, 32)).detach()
    model.intermediate(s_in).square().sum().backward()
    touched = {key for key, p in model.named_parameters() if p.grad is not None}
    parts = {key: model.part(key) for key, _ in model.named_parameters()}
    assert touched == {key for key, part in parts.items() if part == "intermediate"}
    model.zero_grad(set_to_none=True)
    s_out = model.intermediate(s_in).detach()
    model.classifier(s_out).sum().backward()
    touched = {key for key, p in model.named_parameters() if p.grad is not None}
    assert touched == {key for key, part in parts.items() if part == "classifier"}
    assert {"extractor", "intermediate", "classifier"} == set(parts.values())


class Constant(Classifier):
    """The same logits for every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.head = nn.Linear(1, len(logits))
        self.head.weight.data.zero_()
        self.head.bias.data = torch.tensor(logits, dtype=torch.float32)

    def features(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 1)


X = torch.zeros(3, 1, 2, 2)


def both(weights: list[float] | None = None, kind: str = "logits") -> Tensor:
    two = Ensemble([Constant(2, 0), Constant(0, 1)], kind)  # type: ignore[arg-type]
    if weights is not None:
        two.weights.copy_(torch.tensor(weights))
    answer: Tensor = two(X)
    return answer


def test_ensembles_average_logits_or_probabilities_with_weights_and_freeze_networks() -> None:
    assert torch.equal(both(), torch.tensor([[1.0, 0.5]]).expand(3, 2))
    assert torch.equal(both([3.0, 1.0]), torch.tensor([[1.5, 0.25]]).expand(3, 2))
    assert torch.equal(both([0.0, 1.0]), torch.tensor([[0.0, 1.0]]).expand(3, 2))
    p, q = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))  # of class 0
    found = both(kind="softmax").exp()
    assert found[0].tolist() == pytest.approx([(p + q) / 2, 1 - (p + q) / 2])
    assert both([3.0, 1.0], "softmax").exp()[0, 0].item() == pytest.approx((3 * p + q) / 4)
    assert both([0.0, 1.0], "softmax").exp()[0, 0].item() == pytest.approx(q)
    # one that is very sure outweighs two in the logits, not in the probabilities
    nets = [Constant(9, 0), Constant(0, 2), Constant(0, 2)]
    assert Ensemble(nets)(X).argmax(1).tolist() == [0, 0, 0]
    assert Ensemble(nets, kind="softmax")(X).argmax(1).tolist() == [1, 1, 1]
    net = Constant(0.3, 0.1)
    alone = Ensemble([net.train()])
    assert torch.equal(alone(X), net(X)) and len(alone) == 1
    assert not net.training and not any(p.requires_grad for p in net.parameters())


def held(net: nn.Module) -> int:
    """Bytes of its parameters and their gradients."""
    found = [each for p in net.parameters() for each in (p, p.grad) if each is not None]
    return sum(each.untyped_storage().nbytes() for each in found)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_gives_its_memory_back_and_has_it_again(layout: torch.memory_format) -> None:
    net = build("cnn2", (3, 8, 8), 4, seed=1).to(memory_format=layout)  # type: ignore[call-overload]
    x, w, offloaded = torch.rand(5, 3, 8, 8), snapshot(net), OffloadedModel(net)
    net(x).sum().backward()
    before, strides, taken = net(x), [p.stride() for p in net.parameters()], held(net)
    ours, names = list(net.parameters()), parameters_only(net)
    offloaded.release()
    offloaded.release()
    assert held(net) == 4 * len(ours) < taken / 100
    assert parameters_only(net) == names
    assert [p.shape for p in ours] == [w[name].shape for name, _ in net.named_parameters()]
    assert bool(net(x).isnan().all())  # nobody takes them for weights
    assert offloaded.restore() and not offloaded.restore()
    net.load_state_dict(w)
    assert torch.equal(net(x), before) and held(net) == taken / 2
    assert [p.stride() for p in net.parameters()] == strides
    assert all(now is p for now, p in zip(net.parameters(), ours, strict=True))


@pytest.mark.parametrize("average", ["none", "same"])
def test_a_methods_network_rests_while_clients_work(tmp_path, monkeypatch, average) -> None:
    made, inside = record_calls(monkeypatch, FedAvg, "prepare", lambda _, half: half), list[int]()

    def exchanged(*given: Any) -> Any:
        if given[-1] > 0:  # the census is before
            inside.extend(held(method._offloaded.net) for method in made)
        return exchange(*given)

    exchange = PlainChannel.exchange
    monkeypatch.setattr(PlainChannel, "exchange", exchanged)
    changes = {"fleet": "cnn2@0.5"} if average == "none" else {"average.across": average}
    config = flat(tmp_path / "rests", method="fedavg") | changes | {"score.clients-every": 1}
    rests = play(config)
    whole = sum(p.numel() for p in made[0].net.parameters()) * 4
    assert len(inside) >= 4 and max(inside) < whole / 100
    assert bool(torch.equal(snapshot(made[0].net)["head.weight"], made[0].w["head.weight"]))
    monkeypatch.setattr(OffloadedModel, "release", lambda self: None)
    awake = play(config | {"out": str(tmp_path / "awake")})
    assert awake.weights == rests.weights and awake.timeless == rests.timeless


def test_networks_cost_what_they_should() -> None:
    convolutions = 28 * 28 * 6 * 25 + 10 * 10 * 16 * 150 + 120 * 400
    linear = 120 * 84 + 84 * 10
    assert macs(build("lenet5", (1, 32, 32), 10, seed=0), (1, 32, 32)) == convolutions + linear
    costs = {}
    for name in COSTS:
        spec, _, stem = name.partition(" ")
        with torch.device("meta"):
            model = build(spec, (3, 32, 32), 10, seed=0, stem=stem or "auto")
            costs[name] = macs(model, (3, 32, 32)) / 1e6
    assert costs == pytest.approx(COSTS, rel=0.01)


COSTS = {
    **{"wrn-40-1": 83.3, "wrn-16-1": 26.7, "resnet8-wide-gn": 194.7},
    **{"resnet8": 12.5, "resnet20": 40.8, "resnet32": 69.1},
    **{"resnet10": 18.1, "resnet14": 27.6, "resnet18": 37.0},
    **{"resnet22": 46.4, "resnet26": 55.9, "resnet34": 74.8, "resnet18 cifar": 555},
    **{"densenet-bc-40-12": 72, "densenet-40-12": 265, "densenet-bc-100-12": 288},
    "densenet121 cifar": 890,
}
"""Millions of multiply-adds for an image of 32×32 pixels, by architecture and stem."""


def test_torchvision_s_networks_and_operators_are_there_and_none_beside_a_cuda_build() -> None:
    from common import vision
    from common.vision import torchvision

    assert torchvision.models.resnet18(num_classes=10).fc.out_features == 10
    assert hasattr(torch.ops.torchvision, "nms")
    builtin = torch.version.cuda is not None or torchvision.extension._has_ops()
    assert (vision.declared is None) is builtin


@pytest.mark.parametrize(
    "spec", ["mlp@0.25", "lenet5", "cnn3@0.5", "resnet18@0.0625", "wrn-16-1", "cnn3-exits2@0.5"]
)
def test_every_entry_is_in_one_layer_and_the_head_is_the_last(spec: str) -> None:
    network = build(spec, (1, 32, 32), 3, seed=1)
    groups = layers(network)
    names = [name for group in groups for name in group]
    assert sorted(names) == sorted(network.state_dict())
    head = {name for name, value in network.state_dict().items() if value.shape[:1] == (3,)}
    assert set(groups[-1]) <= head == head & set(names) and len(groups[-1]) == 2
    assert last(network) == set(groups[-1]) and last(network, 0) == frozenset()
    assert last(network, 2) == {*groups[-2], *groups[-1]}
    assert last(network, len(groups)) == last(network, 99) == network.state_dict().keys()
    with torch.device("meta"):
        assert layers(build(spec, (1, 32, 32), 3, seed=1)) == groups


def test_normalisation_follows_its_layer_and_is_found_by_its_type() -> None:
    network = build("cnn2@0.5", (1, 8, 8), 3, seed=1)
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert layers(network) == [
        ["stem.conv.weight", *(f"stem.bn.{name}" for name in norm)],
        ["layer1.0.conv.weight", *(f"layer1.0.bn.{name}" for name in norm)],
        ["head.weight", "head.bias"],
    ]
    assert buffers(network) == {f"{p}.bn.{n}" for p in ("stem", "layer1.0") for n in norm[2:]}
    network = build("resnet18@0.0625", (3, 32, 32), 10, seed=1)
    entries, by_name = batchnorm(network), batchnorm(network, by_name=True)
    assert len(entries) == 20 * 5 and len(by_name) == 17 * 5 and by_name < entries
    assert {name.rpartition(".")[0] for name in entries - by_name} == {
        f"layer{i}.0.downsample.1" for i in (2, 3, 4)
    }
    group = nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.BatchNorm1d(2, affine=False))
    assert batchnorm(group) == {f"2.{n}" for n in norm[2:]}
