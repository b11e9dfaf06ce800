"""Averages across widths: leading blocks of the widest network, number by number."""

from typing import Any

import pytest
import torch

from common.exchange import tree
from common.exchange.protocol import ModelReply
from common.exchange.records import StateDict
from common.models import build, parse
from common.settings.options import Average
from common.techniques.widths import LEADING, RandomWindow, Roll, block, check_widths, cut, take
from server_app.aggregation.mean import average
from server_app.aggregation.width import Block, average_blocks
from server_app.method import Replies
from tests.support.battery import tiers
from tests.support.halves import client, server
from tests.support.tiny import Run
from tests.support.weights import same

FLEET = {"fleet": "cnn2@0.5,cnn2@0.25", "average__across": "width"}


def options(**changes: Any) -> Average:
    return Average(**{"weights": "uniform", "robust": "none", **changes})


def blocks(*states: StateDict, whole: StateDict, weights: tuple[float, ...] = ()) -> list[Block]:
    weighed = zip(states, weights or [1.0] * len(states), strict=True)
    return [Block(state, block(whole, state), weight) for state, weight in weighed]


def mean(whole: StateDict, *states: StateDict, **changes: Any) -> StateDict:
    weights = changes.pop("by", ())
    found = blocks(*states, whole=whole, weights=weights)
    return average_blocks(found, whole, options(**changes), whole)


def state(spec: str, seed: int = 1) -> StateDict:
    return dict(build(spec, (1, 16, 16), 10, seed=seed).state_dict())


def test_every_number_is_the_mean_over_its_owners_also_a_robust_one() -> None:
    whole = {"w": torch.full((3, 3), 7.0)}
    a, b = {"w": torch.full((2, 2), 2.0)}, {"w": torch.tensor([[4.0]])}
    assert mean(whole, a, b)["w"].tolist() == [[3, 2, 7], [2, 2, 7], [7, 7, 7]]
    # weights 1 and 3: (2 + 3·4) / 4
    assert mean(whole, a, b, by=(1.0, 3.0))["w"].tolist() == [[3.5, 2, 7], [2, 2, 7], [7, 7, 7]]
    whole, part = {n: torch.zeros(2) for n in "wm"}, {n: torch.ones(1) for n in "wm"}
    found = average_blocks(blocks(part, whole=whole), whole, options(bn_buffers=False), {"w"})
    assert found["w"].tolist() == [1, 0] and found["m"].tolist() == [0, 0], "parameters only"
    whole = {"w": torch.zeros(2)}
    wide = [{"w": torch.tensor([v, v])} for v in (1.0, 2.0)]
    narrow = [{"w": torch.tensor([v])} for v in (3.0, 900.0, 4.0)]
    assert mean(whole, *wide, *narrow, robust="median")["w"].tolist() == [3.0, 1.5]
    assert mean(whole, *wide, *narrow, robust="trimmed", trim=0.2)["w"].tolist() == [3.0, 1.5]
    clipped = mean(whole, wide[0], {"w": torch.tensor([900.0])}, robust="clip", clip_norm=1.0)
    assert clipped["w"].tolist() == pytest.approx([(0.5**0.5 + 1) / 2, 0.5**0.5])


def test_with_one_width_it_is_the_ordinary_mean_bit_for_bit() -> None:
    names = tree.parameters_only(build("cnn2@0.5", (1, 16, 16), 10, seed=1))
    states = [state("cnn2@0.5", seed) for seed in (1, 2, 3)]
    for weights, settings in (
        ([5, 7, 9], options(weights="samples")),
        ([1, 1, 1], options(robust="median")),
    ):
        found = blocks(*states, whole=states[0], weights=tuple(weights))
        ours = average_blocks(found, states[0], settings, states[0])
        assert same(ours, average(states, weights, states[0], settings, names))


@pytest.mark.parametrize("name", ["cnn3", "lenet5", "mlp", "resnet8", "wrn-16-1", "resnet10"])
def test_a_clients_block_comes_back_and_nothing_else_moves(name: str) -> None:
    """Cutting and putting back: only the block of the one client changes, to what it sent."""
    whole, part = state(name), state(f"{name}@0.5", seed=2)
    places = block(whole, part)
    result = mean(whole, part)
    assert same(cut(result, places), part)
    for entry, value in whole.items():
        outside = torch.ones_like(value, dtype=torch.bool)
        outside[tuple(slice(n) for n in part[entry].shape)] = False
        assert torch.equal(result[entry][outside], value[outside]), entry
    assert same(mean(whole, cut(whole, places), whole), whole)


def test_windows_by_hand_follow_the_layer_before_and_bring_pixels_along() -> None:
    assert [Roll(t)(4, 2).tolist() for t in range(4)] == [[0, 1], [3, 0], [2, 3], [1, 2]]
    window = RandomWindow(1, 0, 1)(16, 4)
    assert window.tolist() == sorted(set(window.tolist())) and len(window) == 4
    assert window.tolist() != RandomWindow(1, 1, 1)(16, 4).tolist()
    whole, part = shaped(4, 5), shaped(2, 3)
    found = block(whole, part, Roll(1))
    told = {name: [axis.tolist() for axis in axes] for name, axes in found.items()}
    assert told == {
        "conv.weight": [[3, 0], [0, 1, 2]],
        "bn.weight": [[3, 0]],
        "bn.num_batches_tracked": [],
        "fc.weight": [[4, 0, 1], [6, 7, 0, 1]],
        "head.weight": [[0, 1, 2], [4, 0, 1]],
    }
    assert take(torch.arange(4), found["bn.weight"]).tolist() == [3, 0]
    assert block(whole, part, LEADING)["fc.weight"][1].tolist() == [0, 1, 2, 3]


def shaped(conv: int, fc: int) -> StateDict:
    """Return a network of a convolution of 3 channels, with two pixels each, and two layers."""
    shapes = {"conv.weight": (conv, 3, 1, 1), "bn.weight": (conv,), "bn.num_batches_tracked": ()}
    shapes |= {"fc.weight": (fc, conv * 2), "head.weight": (3, fc)}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", ["cnn3", "lenet5", "mlp", "resnet8", "wrn-16-1", "resnet10"])
def test_a_rolled_block_is_the_leading_one_of_the_same_network_in_another_order(name: str) -> None:
    """All channels moved by the roll compute the same: so layers that meet roll together."""
    net, t = build(name, (1, 16, 16), 10, seed=1).eval(), 5
    whole, part, x = tree.snapshot(net), state(f"{name}@0.5"), torch.randn(2, 1, 16, 16)
    before, moved = net(x), {}
    for entry, value in whole.items():
        for axis, (m, n) in enumerate(zip(value.shape, part[entry].shape, strict=True)):
            order = (torch.arange(m) - t) % m if n < m else torch.arange(m)
            value = value.index_select(axis, order)
        moved[entry] = value
    net.load_state_dict(moved)
    assert torch.allclose(net(x), before, atol=1e-5)
    rolled, leading = cut(whole, block(whole, part, Roll(t))), cut(moved, block(moved, part))
    assert all(torch.equal(rolled[entry], leading[entry]) for entry in part)


def test_channels_rounded_up_are_heterofls() -> None:
    assert parse("cnn2@0.05-up") == ("cnn2", 0.05)
    widths = [len(state(spec)["stem.conv.weight"]) for spec in ("cnn2@0.04-up", "cnn2@0.04")]
    assert widths == [2, 4]  # ⌈1.28⌉; at least 4
    assert state("cnn2@0.5-up").keys() == state("cnn2@0.5").keys()
    with pytest.raises(ValueError, match="'half-up' must be a number"):
        parse("cnn2@half-up")


def test_a_block_larger_than_the_widest_is_refused() -> None:
    states = {"cnn2": {"a": torch.empty(4, 4)}, "cnn2@0.5": {"a": torch.empty(5, 1)}}
    line = r"cnn2@0.5 is no block of cnn2, the widest: 'a' is \[5, 1"
    with pytest.raises(ValueError, match=line):
        check_widths(states)


def test_each_client_gets_and_sends_its_own_width() -> None:
    half = server(method="fedavg", **FLEET, clients=2)
    members = [client(0, model="cnn2@0.5"), client(1, model="cnn2@0.25", n=30)]
    half.begin(members)
    whole, to = half.models["cnn2@0.5"], half.requests(1)
    sent = [to(member).w for member in members]
    assert torch.equal(sent[0]["layer1.0.conv.weight"], whole["layer1.0.conv.weight"])
    assert torch.equal(sent[1]["layer1.0.conv.weight"], whole["layer1.0.conv.weight"][:16, :8])
    assert to(members[0]) is to(client(2, model="cnn2@0.5")), "packed once"
    replies = Replies.of([(m, ModelReply(t=1, w=w)) for m, w in zip(members, sent, strict=True)])
    half.step(1, replies)
    assert all(torch.equal(half.models["cnn2@0.5"][name], whole[name]) for name in whole)
    with pytest.raises(ValueError, match=r"w \(cnn2@0.25\): 'stem.conv.weight' is float32\[16, 1"):
        half.check(members[1], ModelReply(w=sent[0]))


@pytest.mark.parametrize("method", tiers(["fedavg", "fedprox", "fedntd", "moon"]))
def test_it_learns_and_scores_every_width(method: str, run: Run) -> None:
    last = run(method=method, **FLEET, rounds=3).journal[-1]
    assert last["accuracies"].keys() == {"cnn2@0.5", "cnn2@0.25"}
    assert last["accuracy"] == pytest.approx(sum(last["accuracies"].values()) / 2)
    assert last["accuracy"] > 0.5 and last["failures"] == []
