"""Means of uploads: layer by layer, and from files."""

from pathlib import Path
from typing import Literal

import pytest
import torch

from common.exchange.records import StateDict
from common.methods.qffl import Reply
from common.models import build
from common.settings.options import Average
from common.training import tree
from common.training.tree import check_nested, cut
from server_app.aggregation.cached import Uploads
from server_app.aggregation.mean import average
from server_app.aggregation.mean import average_layers as aggregate

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


def upload(value: float) -> Reply:
    return Reply(experiment="e", w={"w": torch.tensor([value])}, loss=abs(value))


def cache(folder: Path, limit: int) -> Uploads[Reply]:
    return Uploads(Reply, folder, limit)


def values(uploads: Uploads[Reply], clients: list[int]) -> list[float]:
    """What each client uploaded last; −1 for who never did."""
    found = [uploads.get(k) if k in uploads else upload(-1.0) for k in clients]
    assert all(reply.loss == abs(reply.w["w"].item()) for reply in found), (
        "whole uploads, not weights alone"
    )
    return [reply.w["w"].item() for reply in found]


def test_a_slot_holds_the_latest_upload(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 10)
    uploads.put(1, [(0, upload(1)), (2, upload(2))])
    uploads.put(2, [(2, upload(3))])
    assert values(uploads, [0, 1, 2]) == [1, -1, 3]
    assert 1 not in uploads and 2 in uploads


def test_no_more_than_the_limit_stay_in_memory_and_none_is_lost(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 2)
    for t in range(1, 6):
        uploads.put(t, [(t, upload(t))])
    assert sorted(uploads.in_memory) == [4, 5]
    assert values(uploads, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    assert len(list((tmp_path / "uploads").iterdir())) == 3


def test_of_one_round_the_smaller_ks_stay_in_memory(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 2)
    uploads.put(1, [(k, upload(k)) for k in range(4)])
    assert sorted(uploads.in_memory) == [0, 1]


def test_a_limit_of_zero_keeps_everything_on_disk(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 0)
    uploads.put(1, [(0, upload(1)), (1, upload(2))])
    assert uploads.in_memory == {} and values(uploads, [0, 1]) == [1, 2]


def test_what_a_checkpoint_names_is_there_until_the_next_one(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 0)
    uploads.put(1, [(0, upload(1))])
    held = {k: dict(reply) for k, reply in uploads.in_memory.items()}  # the checkpoint of round 1
    rounds = dict(uploads.rounds)
    uploads.put(2, [(0, upload(2))])  # and a crash before that of round 2
    again = cache(tmp_path, 0)
    again.restore(held, rounds)
    assert values(again, [0]) == [1]
    again.put(2, [(0, upload(2))])
    assert values(again, [0]) == [2]
    again.put(3, [])
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == ["0-2.safetensors"]


def test_what_was_in_memory_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 1)
    uploads.put(1, [(0, upload(1)), (1, upload(2))])
    again = cache(tmp_path, 1)
    again.restore({k: dict(reply) for k, reply in uploads.in_memory.items()}, uploads.rounds)
    assert sorted(again.in_memory) == [0] and values(again, [0, 1]) == [1, 2]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"7-3\.safetensors is missing: .* client 7"):
        cache(tmp_path, 0).restore({}, {7: 3})
