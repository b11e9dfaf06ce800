"""Sub-models and averages across depths."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from common import tree
from common.models import build
from common.options import Average
from common.records import StateDict
from common.tree import check_nested, cut
from server_app.combine.mean import average
from server_app.combine.mean import average_layers as aggregate

RESNETS = [f"resnet{depth}@0.0625" for depth in (10, 14, 18, 22, 26)]


def options(weights: Literal["samples", "uniform"] = "samples", bn_buffers: bool = True) -> Average:
    return Average(weights=weights, bn_buffers=bn_buffers, robust="none")


def state(spec: str, seed: int = 1) -> StateDict:
    return dict(build(spec, (1, 32, 32), 10, seed=seed).state_dict())


def test_each_layer_is_the_mean_over_its_owners_by_hand() -> None:
    deep = {"a": torch.tensor([2.0]), "b": torch.tensor([10.0])}
    flat = {"a": torch.tensor([6.0])}
    previous = {"a": torch.tensor([0.0]), "b": torch.tensor([0.0]), "c": torch.tensor([7.0])}
    # a: (1·2 + 3·6) / 4 = 5; b: 10, of its one owner; c: nobody's, stays
    result = aggregate([deep, flat], [1, 3], previous, options(), frozenset("abc"))
    assert {name: value.item() for name, value in result.items()} == {"a": 5, "b": 10, "c": 7}
    result = aggregate([deep, flat], [1, 3], previous, options("uniform"), frozenset("abc"))
    assert result["a"].item() == 4


def test_without_bn_buffers_only_parameters_are_averaged() -> None:
    sent, before = (
        {"w": torch.ones(1), "m": torch.ones(1)},
        {"w": torch.zeros(1), "m": torch.zeros(1)},
    )
    result = aggregate([sent], [1], before, options(bn_buffers=False), frozenset("w"))
    assert result["w"].item() == 1 and result["m"].item() == 0


def test_with_one_architecture_it_is_the_ordinary_mean_bit_for_bit() -> None:
    net = build("resnet10@0.0625", (1, 32, 32), 10, seed=1)
    states = [state("resnet10@0.0625", seed) for seed in (1, 2, 3)]
    ours = aggregate(states, [5, 7, 9], states[0], options(), tree.parameters_only(net))
    plain = average(states, [5, 7, 9], states[0], options(), tree.parameters_only(net))
    assert ours.keys() == plain.keys()
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_equal_clients_of_all_depths_average_to_themselves() -> None:
    whole = state(RESNETS[-1])
    clients = [cut(whole, state(spec)) for spec in RESNETS]
    result = aggregate(clients, [1, 2, 3, 4, 5], whole, options(), frozenset(whole))
    assert all(torch.equal(result[name], whole[name]) for name in whole)


def test_every_resnet_of_the_family_is_a_sub_model_of_the_deepest() -> None:
    assert check_nested({spec: state(spec) for spec in RESNETS}) == RESNETS[-1]
    small = build(RESNETS[1], (1, 32, 32), 10, seed=3)
    small.load_state_dict(cut(state(RESNETS[-1]), state(RESNETS[1])))


def test_the_first_block_is_everybodys_and_the_third_the_deepest_ones() -> None:
    owners = {
        name: [spec for spec in RESNETS if name in state(spec)]
        for name in (
            "layer4.0.downsample.0.weight",
            "layer4.1.conv1.weight",
            "layer1.2.conv1.weight",
        )
    }
    assert [len(specs) for specs in owners.values()] == [5, 4, 1]


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        (["resnet10@0.0625", "resnet26@0.125"], r"'conv1\.weight' is \[4, 1, 7, 7\], in it \[8, 1"),
        (["cnn2", "resnet10@0.0625"], "cnn2 is no sub-model of resnet10@0.0625"),
    ],
)
def test_a_fleet_without_a_largest_network_is_refused(specs: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_nested({spec: state(spec) for spec in specs})
