"""Sizes with layers of their own, and momentum distillation between them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common import models
from common.exchange.records import StateDict
from common.exchange.tree import cut
from common.models import Architecture, build
from common.models.blocks import last_blocks, onward, own_entries
from common.models.classifier import Classifier
from common.training.task import check_fleet
from server_app.method import Models
from tests.support.halves import client, server, task

RESNETS = [f"resnet{depth}@0.0625" for depth in (10, 14, 18, 22, 26)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


class Numbers(Classifier):
    """A number before, one in each block, one in the head."""

    def __init__(self, shape: Sequence[int], classes: int, factor: float, *, blocks: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Parameter(torch.zeros(1)), nn.Linear(1, 1, bias=False)
        self.layer1 = nn.Sequential(*(Block() for _ in range(blocks)))

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1]


@pytest.fixture(autouse=True)
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for blocks in (1, 2, 3):
        row = Architecture(partial(Numbers, blocks=blocks), 1, "", (1, 8, 8), {"own": 1})
        monkeypatch.setitem(models.MODELS, f"numbers{blocks}", row)


def state(stem: float, *blocks: float, head: float = 0.0) -> StateDict:
    of = {f"layer1.{i}.w": torch.tensor([float(w)]) for i, w in enumerate(blocks)}
    return {"stem": torch.tensor([float(stem)]), **of, "head.weight": torch.tensor([[float(head)]])}


def depths(*blocks: int, **average: Any) -> Any:
    """FedAvg's server half across these sizes."""
    given = {f"average__{key}": value for key, value in average.items()}
    specs = [f"numbers{each}" for each in blocks]
    given = {"method": "fedavg", "fleet": ",".join(specs), "average__across": "depth", **given}
    return begun(given, specs)


def begun(given: dict[str, Any], specs: Sequence[str]) -> Any:
    half = server(**given)
    half.begin([client(k, model=spec) for k, spec in enumerate(specs)])
    return half.matching


def averaged(
    ours: Any, uploads: Sequence[StateDict], sizes: Sequence[int] = (), start: float = 0.0
) -> dict[str, dict[str, float]]:
    """What the sizes' networks hold, from networks whose every number is ``start``."""
    whole = {n: torch.full(v.shape, start) for n, v in ours.layers[ours.largest].items()}
    named = [(f"numbers{len(upload) - 2}", upload) for upload in uploads]
    sizes = sizes or [1] * len(uploads)
    found: Models = ours.average(named, sizes, ours.split(whole), set(whole))
    parts = ours.by_architecture(found)
    return {s: {n: float(value) for n, value in w.items()} for s, w in parts.items()}


def test_the_last_block_learns_from_the_next_size_before_anything_is_mixed() -> None:
    # the smaller's block moves by 1, the larger's three by 2, 4 and 6: .8 · 1 + .2 · 4
    found = averaged(depths(1, 3), [state(0, 1), state(0, 2, 4, 6)])
    assert found["numbers1"]["layer1.0.w"] == pytest.approx(1.6)
    assert [found["numbers3"][f"layer1.{i}.w"] for i in range(3)] == [2, 4, 6]
    # it is a step that is distilled, wherever the networks stood before
    found = averaged(depths(1, 3), [state(5, 6), state(5, 7, 9, 11)], start=5.0)
    assert found["numbers1"]["layer1.0.w"] == pytest.approx(6.6)
    uploads = [state(0, 1), state(0, 2, 2), state(0, 6, 6, 6)]
    found = averaged(depths(1, 2, 3, beta=0.5, own="none"), uploads)
    # block 0 of size 1: ½ · 1 + ½ · 2, the blocks of size 2 as they came; then (1.5 + 2 + 6) / 3.
    # block 1 of size 2: ½ · 2 + ½ · 6; then (4 + 6) / 2
    assert found["numbers1"]["layer1.0.w"] == pytest.approx(9.5 / 3)
    assert found["numbers3"]["layer1.1.w"] == found["numbers2"]["layer1.1.w"] == 5


def test_sizes_share_by_their_samples_what_is_nobodys_own() -> None:
    uploads = [state(1, 1, head=1), state(3, 3, 9, head=3)]
    found = averaged(depths(1, 2, beta=0.0), uploads, [10, 30])
    assert found["numbers1"] == {"stem": 2.5, "layer1.0.w": 1, "head.weight": 1}
    # block 0 is the smaller's last one, so the larger has it for itself
    assert found["numbers2"] == {"stem": 2.5, "layer1.0.w": 3, "layer1.1.w": 9, "head.weight": 3}
    uploads = [state(0, 1), state(0, 2, 2), state(0, 6, 6, 6)]
    found = averaged(depths(1, 2, 3, beta=0.0), uploads, [1, 3, 1])
    assert found["numbers1"]["layer1.0.w"] == 1
    assert [found["numbers2"][f"layer1.{i}.w"] for i in range(2)] == [3, 2]  # (3 · 2 + 6) / 4
    assert [found["numbers3"][f"layer1.{i}.w"] for i in range(3)] == [3, 6, 6]
    found = averaged(depths(1, 2, 3), [state(1, 1, head=1)], start=7.0)
    assert found["numbers1"] == {"stem": 1, "layer1.0.w": 1, "head.weight": 1}
    assert found["numbers2"] == {"stem": 1, "layer1.0.w": 7, "layer1.1.w": 7, "head.weight": 7}
    assert set(found["numbers3"].values()) == {1, 7}


@pytest.mark.parametrize("beta", [0.2, 0.7, 1.0])
def test_equal_steps_are_the_same_under_any_beta(beta: float) -> None:
    uploads = [state(0.1, 0.3), state(0.2, 0.3, 0.3, 0.3)]
    assert averaged(depths(1, 3, beta=beta), uploads) == averaged(depths(1, 3, beta=0.0), uploads)


def test_a_median_of_each_size_and_a_step_shortened_as_a_whole() -> None:
    uploads = [state(s, s, head=s) for s in (1, 2, 90)] + [state(3, 4, 4, head=4)]
    found = averaged(depths(1, 2, robust="median", beta=0.5), uploads)
    assert found["numbers1"] == {"stem": 2.5, "layer1.0.w": 3, "head.weight": 2}  # ½ · 2 + ½ · 4
    found = averaged(depths(1, 2, robust="clip", clip_norm=1.5, beta=0.0), [state(3, 0, head=4)])
    assert found["numbers1"]["stem"] == pytest.approx(0.9)
    assert found["numbers1"]["head.weight"] == pytest.approx(1.2)


def test_last_blocks_of_a_family_and_the_blocks_of_one_shape_onward() -> None:
    small = dict(build(RESNETS[1], (1, 32, 32), 10, seed=1).state_dict())
    assert last_blocks(small) == {"layer1": 0, "layer2": 0, "layer3": 1, "layer4": 1}
    own = own_entries(small, "head,last")
    assert own[-2:] == ["head.weight", "head.bias"] and "layer4.1.bn2.running_var" in own
    assert {name.split(".")[0] for name in own} == {"layer4", "head"}
    assert own_entries(small, "none") == []
    states = [dict(build(s, (1, 32, 32), 10, seed=1).state_dict()) for s in RESNETS]
    found = onward(states[1], states[2], "all")  # 1-1-2-2 in 2-2-2-2
    assert found["layer1.0.conv1.weight"] == ["layer1.0.conv1.weight", "layer1.1.conv1.weight"]
    assert found["layer2.0.conv2.weight"] == ["layer2.0.conv2.weight", "layer2.1.conv2.weight"]
    assert "layer2.0.conv1.weight" not in found, "block 0 has fewer channels to read"
    assert found["layer4.1.bn1.weight"] == ["layer4.1.bn1.weight"]
    assert not any("downsample" in name for name in found)
    assert onward(states[1], states[2], "last").keys() == {n for n in found if "layer4" in n}
    # where neither has more than one block, both of its convolutions are of one shape
    assert "layer2.0.conv1.weight" in onward(states[0], states[1], "all")


def test_networks_are_cut_from_the_largest_ones_first_draw() -> None:
    given = {"method": "fedavg", "fleet": "cnn2,cnn4", "average__across": "depth"}
    ours = begun(given, ["cnn2", "cnn4"])
    whole = dict(build("cnn4", (1, 8, 8), 3, seed=1).state_dict())
    small = ours.by_architecture(ours.split(whole))["cnn2"]
    assert all(small[name] is value for name, value in cut(whole, small).items())
    flat = ours.merged(ours.split(whole))
    assert flat.keys() - whole.keys() == {f"cnn2/{name}" for name in ours.own["cnn2"]}


def test_a_network_without_blocks_takes_part_with_its_head_alone() -> None:
    allowed = {"average__across": "depth", "average__own": "head", "average__beta": 0.0}
    check_fleet(task(method="fedavg", fleet="mlp@0.25", **allowed))
