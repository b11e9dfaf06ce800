"""HeteroFL and FedRolex: rates, masks, the scaler, windows, and who has a part in which number."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from client_app.methods import heterofl
from client_app.methods.heterofl import HeteroFL, divided_by
from client_app.participant import Participant
from common import seeds
from common.exchange import protocol, tree
from common.exchange.protocol import ModelReply
from common.exchange.records import StateDict
from common.methods.heterofl import Request
from common.models.layers import normalisations
from common.models.masked import Zeroed
from common.parse import defaults, parse
from common.techniques.widths import LEADING, Roll, block, cut
from server_app.aggregation.width import Block, average_blocks, counted
from server_app.method import Replies
from tests.support.halves import client, server, task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run, flat, play
from tests.support.weights import same

METHOD: dict[str, Any] = {"method": "heterofl", "fleet": "cnn2@0.5,cnn2@0.25", "score__bn": "batch"}
REDRAWN = {**METHOD, "heterofl__rates": "redrawn"}


def half_with(*specs: str, classes: tuple[list[int], ...] = (), **changes: Any) -> Any:
    """A server half after its census, and its clients."""
    half = server(**{**METHOD, **changes}, clients=len(specs))
    held = classes or ([0, 1, 2],) * len(specs)
    members = [client(k, model=s, classes=held[k]) for k, s in enumerate(specs)]
    half.begin(members)
    return half, members


def test_without_mask_and_scaler_it_is_the_mean_across_widths_bit_for_bit(played: Run) -> None:
    same = {**METHOD, "train__clip": 1.0, "average__weights": "uniform"}
    fedavg = played(**{**same, "method": "fedavg", "average__across": "width"})
    scaled = played(**same, heterofl__mask="none")
    assert played(**same, heterofl__mask="none", heterofl__scaler=False).weights == fedavg.weights
    assert scaled.weights != fedavg.weights


def test_rows_of_the_head_come_from_clients_that_have_the_class() -> None:
    specs = ("cnn2@0.5", "cnn2@0.25")
    for mask in ("zero", "none"):
        held = ([0, 2], [2])
        half, members = half_with(*specs, classes=held, heterofl__mask=mask)
        whole, sent = half.models["cnn2@0.5"], half.requests(1)
        replies = []
        for member, value in zip(members, (2.0, 4.0), strict=True):
            filled = {n: torch.full_like(w, value) for n, w in sent(member).w.items()}
            replies.append((member, ModelReply(t=1, w=filled)))
        half.step(1, Replies.of(replies))
        head, bias = (half.models["cnn2@0.5"][f"head.{name}"] for name in ("weight", "bias"))
        if mask == "zero":
            assert torch.equal(head[1], whole["head.weight"][1]), "nobody's class"
            assert set(head[0].tolist()) == {2.0}
            assert head[2].tolist() == [3.0] * 16 + [2.0] * 16
            assert bias[[0, 2]].tolist() == [2.0, 3.0] and bias[1] == whole["head.bias"][1]
        else:
            assert head.tolist() == [[3.0] * 16 + [2.0] * 16] * 3 and bias.tolist() == [3.0] * 3
        conv = half.models["cnn2@0.5"]["stem.conv.weight"].flatten(1)
        assert conv[:8].unique().tolist() == [3.0] and conv[8:].unique().tolist() == [2.0]


def test_absent_classes_have_logits_0_and_the_scaler_divides_in_training_alone() -> None:
    class Fixed(nn.Module):
        spec, head = "fixed", nn.Linear(1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 5.0, -2.0]])

    z = Zeroed(Fixed(), [0, 2])(torch.zeros(1))  # type: ignore[arg-type]
    assert z.tolist() == [[1.0, 0.0, -2.0]]
    norm, x = nn.GroupNorm(1, 2, eps=0.5), torch.tensor([[[1.0], [3.0]]])
    plain = norm(x)
    norm.register_forward_pre_hook(divided_by(0.25))
    assert torch.equal(norm.eval()(x), plain)
    # (1, 3) / ¼ has mean 8 and variance 16: ±4 / √16.5
    assert norm.train()(x).flatten().tolist() == pytest.approx([-4 / 16.5**0.5, 4 / 16.5**0.5])


def test_it_stands_before_every_norm_at_a_rate_below_1(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record_calls(monkeypatch, heterofl, "divided_by", lambda _, rate: rate)
    participant = Participant(task(**METHOD).config, {"partition-id": 0}, "e")
    handler = HeteroFL(participant)
    for spec, rate in (("cnn2@0.5", 1.0), ("cnn2@0.25", 0.5)):
        net = participant.model(spec)
        handler.loss(Request(w={}, spec=spec, rate=rate), net)
        assert len(normalisations(net)) == 2
    assert seen == [0.5, 0.5]


def test_rates_are_over_the_widest_and_drawn_anew_by_their_shares() -> None:
    half, members = half_with("cnn2@0.5", "cnn2@0.25")
    requests = [half.requests(1)(member) for member in members]
    assert [(r.spec, r.rate) for r in requests] == [("cnn2@0.5", 1), ("cnn2@0.25", 0.5)]
    fleet = "cnn2@0.5,cnn2@0.25,cnn2@0.25"
    half, members = half_with("cnn2@0.5", "cnn2@0.25", **{**REDRAWN, "fleet": fleet})
    drawn = [[half.requests(t)(m).spec for m in members] for t in range(1, 201)]
    again = [[half.requests(t)(m).spec for m in members] for t in range(1, 201)]
    assert drawn == again and [a for a, _ in drawn] != [b for _, b in drawn]
    counts = Counter(spec for pair in drawn for spec in pair)
    assert counts["cnn2@0.25"] == pytest.approx(400 * 2 / 3, abs=40)
    for member in members:
        sent = half.requests(3)(member)
        tree.check_like(sent.w, half.task.expected(sent.spec), "w")


def test_an_upload_is_checked_against_the_rate_that_was_sent() -> None:
    half, members = half_with("cnn2@0.5", "cnn2@0.25", **REDRAWN)
    t = next(t for t in range(1, 50) if half.requests(t)(members[0]).spec == "cnn2@0.25")
    sent = half.requests(t)(members[0])
    half.check(members[0], ModelReply(t=t, w=sent.w))
    own = cut(half.models["cnn2@0.5"], block(half.models["cnn2@0.5"], half.models["cnn2@0.5"]))
    with pytest.raises(ValueError, match=r"w \(cnn2@0.25\): .* is float32\[16, 1"):
        half.check(members[0], ModelReply(t=t, w=own))


def test_a_client_refuses_a_rate_that_is_not_configured_or_that_its_node_does_not_have() -> None:
    node = {"partition-id": 0, "num-partitions": 4}
    handler = HeteroFL(Participant(task(**METHOD).config, node, "e"))
    with pytest.raises(ValueError, match=r"cnn2@0.125 is not configured; allowed: cnn2@0.25, cnn"):
        handler.train(Request(w={}, spec="cnn2@0.125", rate=0.25))
    handler = HeteroFL(Participant(task(**REDRAWN).config, {**node, "model": "cnn2@0.25"}, "e"))
    with pytest.raises(ValueError, match=r'sets model = cnn2@0.25, but rates = "redrawn"'):
        handler.hello(protocol.CensusRequest(clients=4))


def test_the_widest_is_the_runs_model_and_a_clients_own_figure_knows_its_classes(run: Run) -> None:
    skewed = {"data__partition": "label_dirichlet", "data__alpha": 0.1, "data__min_size": 5}
    zero = run(**METHOD, **skewed, rounds=3)
    last, members = zero.journal[-1], zero.journal[0]["clients"]
    assert last["accuracy"] == last["accuracies"]["cnn2@0.5"]
    gains = {s["k"]: s["accuracy"] - s["accuracy_global"] for s in last["scores"] if s["n"]}
    assert any(gains.values())
    single = [m["k"] for m in members if len(m["classes"]) == 1 and m["k"] in gains]
    assert all(gains[k] >= 0 for k in single), "two logits are 0, the third is this client's"
    unmasked = run(**METHOD, **skewed, heterofl__mask="none").journal[-1]["scores"]
    assert all(score["accuracy"] == score["accuracy_global"] for score in unmasked)


def test_bytes_are_those_of_the_rates_that_were_sent(run: Run) -> None:
    played = run(**REDRAWN, rounds=4, score__clients_every=0)
    half, members = half_with(*("cnn2@0.5", "cnn2@0.25") * 2, **REDRAWN)
    for entry in played.journal[1:]:
        specs = [half.requests(entry["round"])(member).spec for member in members]
        sizes = [sum(v.nbytes for v in half.task.expected(spec).values()) for spec in specs]
        assert entry["bytes"]["arrays_up"] == sum(sizes)


def test_defaults_are_the_methods_own() -> None:
    config = parse({**defaults(), "method": "heterofl"})
    assert (config.average.across, config.average.weights) == ("width", "uniform")
    assert config.train.clip == 1.0 and parse({**defaults(), "method": "fedavg"}).train.clip == 0.0


def test_all_clients_measure_every_width(run: Run) -> None:
    batch = run(**METHOD, rounds=3)
    measured = run(**{**METHOD, "score__bn": "recalibrated"}, rounds=3)
    last = measured.journal[-1]
    assert last["accuracies"].keys() == {"cnn2@0.5", "cnn2@0.25"} and last["failures"] == []
    assert last["accuracy"] == last["accuracies"]["cnn2@0.5"] > 0.5
    assert last["accuracy_bn"]["recalibrated"] == last["accuracy"]
    assert last["accuracy_bn"]["batch"] == batch.journal[-1]["accuracy"], "the same training"
    half, members = half_with("cnn2@0.5", "cnn2@0.25")
    assert half.measured_by("cnn2@0.5") == half.measured_by("cnn2@0.25") == members


FEDROLEX: dict[str, Any] = {**METHOD, "method": "fedrolex"}


def rolled(**changes: Any) -> Any:
    half = server(**{**FEDROLEX, **changes}, clients=2)
    specs = FEDROLEX["fleet"].split(",")
    members = [client(k, model=s, classes=[0, 1, 2]) for k, s in enumerate(specs)]
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
def test_the_mean_over_who_took_a_number_by_hand(dims, by_width, expected) -> None:
    """Offset 1, m 4: a of rate 1 sends 2, b of rate ½, with channels 3 and 0, sends 6."""
    whole = {"w": torch.zeros(4, *dims)}
    a, b = {"w": torch.full((4, *dims), 2.0)}, {"w": torch.full((2, *dims), 6.0)}
    blocks = [Block(w, block(whole, w, Roll(1)), 1.0) for w in (a, b)]
    half = server(**FEDROLEX, clients=2, fedrolex__count="width" if by_width else "mean")
    assert half.options.by_width == by_width
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
    half, members = rolled(fedrolex__update_counts=True)
    plain, _ = rolled()
    start = {n: w for n, w in half.models["cnn2@0.5"].items() if w.is_floating_point()}
    rounds, draw = [], torch.Generator().manual_seed(1)
    for t in (1, 2, 3):
        answers, pairs = [], []
        for member in members:
            w = half.requests(t)(member).w
            drawn = {n: torch.rand(x.shape, generator=draw) for n, x in w.items() if x.dim()}
            own = {**w, **drawn}
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
    settings = {**FEDROLEX, "fedrolex__update_counts": True}
    whole = run(**settings, rounds=3)
    assert whole.weights != run(**FEDROLEX, rounds=3).weights
    play(flat(tmp_path, **settings, rounds=2))
    again = play(flat(tmp_path, **settings, rounds=3, resume=True))
    assert again.weights == whole.weights and again.timeless[-1] == whole.timeless[-1]


@pytest.mark.parametrize(("m", "n"), [(4, 2), (16, 5), (7, 1)])
def test_in_m_rounds_each_channel_is_taken_n_times(m: int, n: int) -> None:
    taken = Counter(int(i) for t in range(1, m + 1) for i in Roll(t - 1)(m, n))
    assert taken == dict.fromkeys(range(m), n)


def test_what_is_sent_rolls_and_comes_back_where_it_was() -> None:
    half, members = rolled()
    whole = half.models["cnn2@0.5"]
    stem = whole["stem.conv.weight"]
    for t, rows in ((1, [0, 1, 2, 3, 4, 5, 6, 7]), (3, [14, 15, 0, 1, 2, 3, 4, 5])):
        sent = half.requests(t)(members[1]).w
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


def test_random_windows_are_each_clients_own_and_the_leading_block_scores_a_width() -> None:
    half, members = rolled(fedrolex__windows="random")
    third = client(2, model="cnn2@0.25", classes=[0, 1, 2])
    windows = [
        half.submodel(c, t).window(16, 8).tolist() for c in (members[1], third) for t in (1, 2)
    ]
    assert len(set(map(tuple, windows))) == 4 and all(len(set(w)) == 8 for w in windows)
    half, _ = rolled()
    whole, like = half.models["cnn2@0.5"], half.task.expected("cnn2@0.25")
    leading = cut(whole, block(whole, like, LEADING))
    assert same(half.by_architecture(half.models)["cnn2@0.25"], leading)


@pytest.mark.parametrize("windows", ["roll", "random"])
def test_oca_pastes_an_upload_where_it_was_taken(windows: str) -> None:
    """A client's upload of round 1 lies, in round 2, where it was in round 1."""
    half, members = rolled(fedrolex__windows=windows, oca__aggregate="on")
    zeros: StateDict = {n: torch.zeros_like(w) for n, w in half.models["cnn2@0.5"].items()}
    half.models = half.overall = {"cnn2@0.5": zeros}
    small = half.task.expected("cnn2@0.25").items()
    ones = {n: torch.ones(w.shape, dtype=w.dtype) for n, w in small}
    half.step(1, Replies.of([(members[1], ModelReply(t=1, w=ones))]))
    window = half.submodel(members[1], 1).window(16, 8)
    for t in (1, 2):
        overall = half.overall["cnn2@0.5"]["stem.bn.weight"]
        assert overall.nonzero().flatten().tolist() == sorted(window.tolist())
        assert overall[window].unique().tolist() == [1.0 / t]
        half.step(2, Replies.of([(members[0], ModelReply(t=2, w=dict(zeros)))]))
