"""Means of uploads: layer by layer, and from files."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from common.exchange import tree
from common.exchange.records import StateDict
from common.exchange.tree import check_nested, cut
from common.methods.qffl import Reply
from common.models import build
from common.settings.options import Average
from server_app.aggregation.cached import Uploads
from server_app.aggregation.mean import average
from server_app.aggregation.mean import average_layers as aggregate
from tests.support.weights import same

RESNETS = [f"resnet{depth}@0.0625" for depth in (10, 14, 18, 22, 26)]


def options(**changes: Any) -> Average:
    return Average(**{"weights": "samples", "bn_buffers": True, "robust": "none", **changes})


def state(spec: str, seed: int = 1) -> StateDict:
    return dict(build(spec, (1, 32, 32), 10, seed=seed).state_dict())


def test_each_layer_is_the_mean_over_its_owners_and_of_one_architecture_the_ordinary_one() -> None:
    deep = {"a": torch.tensor([2.0]), "b": torch.tensor([10.0])}
    flat = {"a": torch.tensor([6.0])}
    previous = {"a": torch.tensor([0.0]), "b": torch.tensor([0.0]), "c": torch.tensor([7.0])}

    def mean(**changes: Any) -> dict[str, float]:
        found = aggregate([deep, flat], [1, 3], previous, options(**changes), frozenset("a"))
        return {name: value.item() for name, value in found.items()}

    # a: (1·2 + 3·6) / 4 = 5; b: 10, of its one owner; c: nobody's, stays
    assert mean() == {"a": 5, "b": 10, "c": 7}
    assert mean(weights="uniform")["a"] == 4
    assert mean(bn_buffers=False) == {"a": 5, "b": 0, "c": 7}, "parameters only"
    net = build("resnet10@0.0625", (1, 32, 32), 10, seed=1)
    states = [state("resnet10@0.0625", seed) for seed in (1, 2, 3)]
    given = states, [5, 7, 9], states[0], options(), tree.parameters_only(net)
    assert same(aggregate(*given), average(*given))


def test_equal_clients_of_all_depths_average_to_themselves() -> None:
    whole = state(RESNETS[-1])
    clients = [cut(whole, state(spec)) for spec in RESNETS]
    result = aggregate(clients, [1, 2, 3, 4, 5], whole, options(), frozenset(whole))
    assert same(result, whole)
    assert check_nested({spec: state(spec) for spec in RESNETS}) == RESNETS[-1]
    small = build(RESNETS[1], (1, 32, 32), 10, seed=3)
    small.load_state_dict(cut(state(RESNETS[-1]), state(RESNETS[1])))


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
    assert all(reply.loss == abs(reply.w["w"].item()) for reply in found), "not weights alone"
    return [reply.w["w"].item() for reply in found]


@pytest.mark.parametrize(("limit", "in_memory"), [(10, [0, 2]), (1, [0]), (0, [])])
def test_a_slot_holds_the_latest_upload_in_memory_or_in_a_file(limit, in_memory, tmp_path) -> None:
    uploads = cache(tmp_path, limit)
    uploads.put(1, [(0, upload(1)), (2, upload(2))])
    assert sorted(uploads.in_memory) == in_memory, "of one round the smaller k"
    assert values(uploads, [0, 1, 2]) == [1, -1, 2]
    uploads.put(2, [(2, upload(3))])
    assert values(uploads, [0, 1, 2]) == [1, -1, 3]
    again = cache(tmp_path, limit)
    assert again.restore(dict(uploads.state({"w": 1}, {}))) == ({"w": 1}, {})
    assert values(again, [0, 1, 2]) == [1, -1, 3], "after a checkpoint"


def test_the_limit_stays_in_memory_and_a_missing_file_is_named(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 2)
    for t in range(1, 6):
        uploads.put(t, [(t, upload(t))])
    assert sorted(uploads.in_memory) == [4, 5]
    assert values(uploads, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    assert len(list((tmp_path / "uploads").iterdir())) == 3
    with pytest.raises(ValueError, match=r"7-3\.safetensors is missing: .* client 7"):
        cache(tmp_path, 0).restore({"inner": {}, "overall": {}, "uploads": {}, "rounds": {7: 3}})


def test_what_a_checkpoint_names_is_there_until_the_next_one(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 0)
    uploads.put(1, [(0, upload(1))])
    held = copy.deepcopy(dict(uploads.state({}, {})))  # the checkpoint of round 1
    uploads.put(2, [(0, upload(2))])  # and a crash before that of round 2
    again = cache(tmp_path, 0)
    again.restore(held)
    assert values(again, [0]) == [1]
    again.put(2, [(0, upload(2))])
    assert values(again, [0]) == [2]
    again.put(3, [])
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == ["0-2.safetensors"]
