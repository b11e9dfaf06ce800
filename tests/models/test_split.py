"""The common split of FedIN: one shape of s_in and s_out for all depths of a family."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from common import seeds
from common.models import Split, build

RESNETS = [f"resnet{depth}" for depth in (10, 14, 18, 22, 26)]
CNNS = ["cnn2", "cnn3", "cnn4"]


def network(spec: str, shape: tuple[int, int, int]) -> Split:
    model = build(spec, shape, 10, seed=0)
    assert isinstance(model, Split)
    return model


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
    assert s_in.shape == (16, 64, 8, 8)
    assert s_out.shape == (16, 512, 1, 1)
    assert s_in.numel() + s_out.numel() == 16 * (4096 + 512) == 73_728


def test_28_pixels_give_an_s_in_of_seven() -> None:
    with torch.device("meta"):
        model = network("resnet10", (1, 28, 28))
        assert model.extractor(torch.zeros(2, 1, 28, 28)).shape == (2, 64, 7, 7)


@pytest.mark.parametrize("spec", CNNS)
def test_the_cnns_share_their_split(spec: str) -> None:
    model = network(spec, (1, 8, 8))
    s_in = model.extractor(torch.zeros(2, 1, 8, 8))
    assert s_in.shape == (2, 32, 4, 4)
    assert model.intermediate(s_in).shape == (2, 64, 2, 2)


@pytest.mark.parametrize("spec", [*CNNS, "resnet10@0.125", "resnet26@0.125"])
def test_the_three_parts_in_turn_are_the_network(spec: str) -> None:
    model = network(spec, (3, 32, 32)).eval()
    x = torch.randn(3, 3, 32, 32, generator=seeds.stream(0, "x"))
    with torch.no_grad():
        parts = model.classifier(model.intermediate(model.extractor(x)))
        assert torch.equal(parts, model(x))


@pytest.mark.parametrize("family", [RESNETS, CNNS])
def test_shallow_keys_are_deep_keys_of_the_same_shape(family: list[str]) -> None:
    for shallow, deep in pairwise(family):
        few, many = keys(shallow, (3, 32, 32)), keys(deep, (3, 32, 32))
        assert few.items() < many.items()


def test_layer_names_are_torchvision_s() -> None:
    own = keys("resnet18", (3, 32, 32))
    assert own["layer2.1.conv1.weight"] == (128, 128, 3, 3)
    assert own["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)


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
