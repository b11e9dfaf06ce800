"""Networks with a classifier after each stage."""

from __future__ import annotations

import pytest
import torch

from common import models
from common.models.exits import Exit, Exits, separable
from common.tree import check_nested


def net(spec: str, side: int = 8) -> Exits:
    found = models.build(spec, (1, side, side), 3, seed=1)
    assert isinstance(found, Exits)
    return found


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


def test_the_layers_are_those_of_the_first_authors_code() -> None:
    # SepConv(a, b): 9a + a² + 2a + 9a + ab + 2b
    assert models.count(separable(64, 128)) == 9 * 64 + 64**2 + 128 + 9 * 64 + 64 * 128 + 256
    widths = (64, 128, 256, 512)
    gate, path = models.count(separable(64, 64)) + 128, 0
    for a, b in ((64, 128), (128, 256), (256, 512)):
        path += models.count(separable(a, b))
    assert models.count(Exit(widths, 100, "bottleneck")) == gate + path + 513 * 100
    assert models.count(Exit(widths[3:], 100, "bottleneck")) == 513 * 100
    assert models.count(Exit(widths, 100, "linear")) == 65 * 100


def test_a_gate_opens_each_place_of_maps_of_any_side() -> None:
    leave = Exit((4, 8), 3, "bottleneck").eval()
    for side in (1, 5, 8):
        maps = torch.rand(2, 4, side, side)
        assert leave(maps).shape == (2, 3)
    torch.nn.init.zeros_(leave.gate[1].weight)  # type: ignore[index,arg-type]
    # σ(0) = ½ everywhere
    assert torch.allclose(leave.features(maps), leave.path(maps / 2).mean((2, 3)))


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("cnn2-exits2", "cnn2 has 1 stages for exits; cnn2-exits1 at most"),
        ("resnet18-exits5", "resnet18 has 4 stages for exits; resnet18-exits4 at most"),
        ("wrn-16-1-exits1", "wrn-16-1 has 0 stages for exits; resnet10 to resnet34, cnn2 to cnn4"),
        ("resnet18-exits0", "no architecture 'resnet18-exits0'"),
    ],
)
def test_a_depth_that_is_not_there_is_refused(spec: str, line: str) -> None:
    with pytest.raises(ValueError) as refused:
        models.check(spec, (1, 32, 32), 3)
    assert line in str(refused.value) and "\n" not in str(refused.value)
