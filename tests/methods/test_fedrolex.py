"""FedRolex: the window rolls, and what it is when it does not."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from common.exchange.protocol import ModelReply
from common.exchange.records import StateDict
from common.techniques.widths import LEADING, Roll, block, cut
from common.training import seeds
from server_app.aggregation.width import Block, average_blocks, counted
from server_app.method import Replies
from tests.support.halves import client, server
from tests.support.tiny import Run, flat, play
from tests.support.weights import same

METHOD: dict[str, Any] = {"method": "fedrolex", "fleet": "cnn2@0.5,cnn2@0.25", "score__bn": "batch"}


def half_with(**changes: Any) -> Any:
    half = server(**{**METHOD, **changes}, clients=2)
    members = [
        client(k, model=s, classes=[0, 1, 2]) for k, s in enumerate(METHOD["fleet"].split(","))
    ]
    half.begin(members)
    return half, members


@pytest.mark.parametrize(
    ("dims", "by_width", "expected"),
    [
        ((1, 1, 1), False, [4, 2, 2, 4]),
        ((1, 1, 1), True, [10 / 3, 2, 2, 10 / 3]),
        ((), True, [4, 2, 2, 4]),  # only convolutions are weighed by their channels
    ],
)
def test_the_mean_over_who_took_a_number_by_hand(
    dims: tuple[int, ...], by_width: bool, expected: list[float]
) -> None:
    """Offset 1, m 4: a of rate 1 sends 2, b of rate ½, with channels 3 and 0, sends 6."""
    whole = {"w": torch.zeros(4, *dims)}
    a, b = {"w": torch.full((4, *dims), 2.0)}, {"w": torch.full((2, *dims), 6.0)}
    blocks = [Block(w, block(whole, w, Roll(1)), 1.0) for w in (a, b)]
    half = server(**METHOD, clients=2, fedrolex__count="width" if by_width else "mean")
    assert half.by_width == by_width
    result = average_blocks(blocks, whole, half.config.average, whole, by_width=by_width)
    assert result["w"].flatten().tolist() == pytest.approx(expected)


def released(w: StateDict, rounds: list[list[tuple[dict[str, Any], StateDict]]]) -> StateDict:
    """Return w after the released server's rounds of pairs of places and values, in order.

    After the first entry, the counts that are read and the copy that is counted are one.
    """
    counts = {name: torch.ones_like(value) for name, value in w.items()}
    for pairs in rounds:
        counting, new = copy.deepcopy(counts), {}
        for name, value in w.items():
            total, weight = torch.zeros_like(value), torch.zeros_like(value)
            for places, own in pairs:
                where = torch.meshgrid(*places[name], indexing="ij")
                k = 1 if value.dim() == 4 else counts[name][where]
                total[where] += k * own[name]
                weight[where] += k
                counting[name][where] += 1
            new[name] = torch.where(weight > 0, total / weight, value)
            counts = counting
        w = new
    return w


def everything(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.arange(n) for n in value.shape[:2])


def test_update_counts_are_those_of_the_released_arithmetic() -> None:
    half, members = half_with(fedrolex__update_counts=True)
    plain, _ = half_with()
    start = {n: w for n, w in half.models["cnn2@0.5"].items() if w.is_floating_point()}
    rounds, draw = [], torch.Generator().manual_seed(1)
    for t in (1, 2, 3):
        answers, pairs = [], []
        for member in members:
            w = half.request(t)(member).w
            own = {
                n: torch.rand(x.shape, generator=draw) if x.is_floating_point() else x
                for n, x in w.items()
            }
            answers.append((member, ModelReply(t=t, w=own)))
            places = block(half.models["cnn2@0.5"], own, Roll(t - 1))
            pairs.append(({n: at or everything(own[n]) for n, at in places.items()}, own))
        for each in (half, plain):
            each.t = t
            each.step(t, Replies.of(answers))
        order = torch.randperm(2, generator=seeds.stream(half.task.seed, "order", t))
        rounds.append([pairs[i] for i in order])
    expected, ours = released(start, rounds), half.models["cnn2@0.5"]
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
        equal = torch.allclose(ours[name], plain.models["cnn2@0.5"][name], atol=1e-3)
        assert equal == (value.dim() == 4), name
    assert half.state().inner["counts"]["head.bias"].tolist() == [7.0, 7.0, 7.0]


def test_the_second_client_weighs_twice_as_much_in_round_1_by_hand() -> None:
    counts, start = torch.ones(3), torch.tensor([0.0, 0.0, 9.0])
    first, second = torch.tensor([2.0, 2.0]), torch.tensor([6.0])
    parts = [(first, (torch.tensor([0, 1]),)), (second, (torch.tensor([1]),))]
    # number 1 has weights 1 and 2: (2 + 2 · 6) / 3; then 3 and 4: (3 · 2 + 4 · 6) / 7
    assert counted(start, parts, counts).tolist() == pytest.approx([2.0, 14 / 3, 9.0])
    assert counts.tolist() == [2.0, 3.0, 1.0]
    assert counted(start, parts, counts).tolist() == pytest.approx([2.0, 30 / 7, 9.0])


@pytest.mark.full
def test_update_counts_survive_a_resumed_run(run: Run, tmp_path: Path) -> None:
    settings = {**METHOD, "fedrolex__update_counts": True}
    whole = run(**settings, rounds=3)
    assert whole.weights != run(**METHOD, rounds=3).weights
    play(flat(tmp_path, **settings, rounds=2))
    again = play(flat(tmp_path, **settings, rounds=3, resume=True))
    assert again.weights == whole.weights and again.timeless[-1] == whole.timeless[-1]


@pytest.mark.parametrize(("m", "n"), [(4, 2), (16, 5), (7, 1)])
def test_in_m_rounds_each_channel_is_taken_n_times(m: int, n: int) -> None:
    taken = Counter(int(i) for t in range(1, m + 1) for i in Roll(t - 1)(m, n))
    assert taken == dict.fromkeys(range(m), n)


def test_what_is_sent_rolls_and_comes_back_where_it_was() -> None:
    half, members = half_with()
    whole = half.models["cnn2@0.5"]
    stem = whole["stem.conv.weight"]
    for t, rows in ((1, [0, 1, 2, 3, 4, 5, 6, 7]), (3, [14, 15, 0, 1, 2, 3, 4, 5])):
        sent = half.request(t)(members[1]).w
        assert torch.equal(sent["stem.conv.weight"].sort(0).values, stem[rows].sort(0).values)
    replies = Replies.of([(members[1], ModelReply(t=3, w={n: w + 1 for n, w in sent.items()}))])
    half.step(3, replies)

    def changed(name: str, axis: int) -> list[int]:
        """Return the places along an axis in which a number has changed."""
        moved = (half.models["cnn2@0.5"][name] != whole[name]).movedim(axis, 0)
        places: list[int] = moved.flatten(1).any(1).nonzero().flatten().tolist()
        return places

    assert changed("stem.conv.weight", 0) == sorted(rows)
    assert changed("layer1.0.conv.weight", 1) == sorted(rows), "its inputs are these"
    assert changed("layer1.0.conv.weight", 0) == [*range(14), 30, 31]


def test_random_windows_are_each_clients_and_rounds_own() -> None:
    half, members = half_with(fedrolex__windows="random")
    third = client(2, model="cnn2@0.25", classes=[0, 1, 2])
    windows = [half.taken(c, t).window(16, 8).tolist() for c in (members[1], third) for t in (1, 2)]
    assert len(set(map(tuple, windows))) == 4 and all(len(set(w)) == 8 for w in windows)


@pytest.mark.parametrize("windows", ["roll", "random"])
def test_oca_pastes_an_upload_where_it_was_taken(windows: str) -> None:
    """A client's upload of round 1 lies, in round 2, where it was in round 1."""
    half, members = half_with(fedrolex__windows=windows, oca__aggregate="on")
    zeros: StateDict = {n: torch.zeros_like(w) for n, w in half.models["cnn2@0.5"].items()}
    half.models = half.overall = {"cnn2@0.5": zeros}
    small = half.task.expected("cnn2@0.25").items()
    ones = {n: torch.ones(w.shape, dtype=w.dtype) for n, w in small}
    half.step(1, Replies.of([(members[1], ModelReply(t=1, w=ones))]))
    window = half.taken(members[1], 1).window(16, 8)
    for t in (1, 2):
        overall = half.overall["cnn2@0.5"]["stem.bn.weight"]
        assert overall.nonzero().flatten().tolist() == sorted(window.tolist())
        assert overall[window].unique().tolist() == [1.0 / t]
        half.step(2, Replies.of([(members[0], ModelReply(t=2, w=dict(zeros)))]))


def test_the_leading_block_stands_for_every_other_width() -> None:
    half, _ = half_with()
    whole, like = half.models["cnn2@0.5"], half.task.expected("cnn2@0.25")
    leading = cut(whole, block(whole, like, LEADING))
    assert same(half.parts(half.models)["cnn2@0.25"], leading)
