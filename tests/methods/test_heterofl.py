"""HeteroFL: rates, masks, the scaler, and who has a part in which number."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from client_app.methods import heterofl
from client_app.methods.heterofl import HeteroFL, divided_by
from client_app.participant import Participant
from common.exchange import protocol
from common.exchange.protocol import ModelReply
from common.methods.heterofl import Request
from common.models.layers import normalisations
from common.models.masked import Zeroed
from common.settings.parse import defaults, parse
from common.techniques.widths import block, cut
from common.training import tree
from server_app.method import Replies
from tests.support.halves import client, server, task
from tests.support.recorded_calls import record_calls
from tests.support.tiny import Run

METHOD = {"method": "heterofl", "fleet": "cnn2@0.5,cnn2@0.25", "score__bn": "batch"}
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
        whole, sent = half.models["cnn2@0.5"], half.request(1)
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


def test_logits_of_absent_classes_are_0_by_hand() -> None:
    class Fixed(nn.Module):
        spec, head = "fixed", nn.Linear(1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 5.0, -2.0]])

    z = Zeroed(Fixed(), [0, 2])(torch.zeros(1))  # type: ignore[arg-type]
    assert z.tolist() == [[1.0, 0.0, -2.0]]


def test_the_scaler_divides_in_training_alone() -> None:
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


def test_the_rate_is_over_the_widest() -> None:
    half, members = half_with("cnn2@0.5", "cnn2@0.25")
    requests = [half.request(1)(member) for member in members]
    assert [(r.spec, r.rate) for r in requests] == [("cnn2@0.5", 1), ("cnn2@0.25", 0.5)]


def test_rates_are_drawn_anew_in_each_round_by_their_shares() -> None:
    fleet = "cnn2@0.5,cnn2@0.25,cnn2@0.25"
    half, members = half_with("cnn2@0.5", "cnn2@0.25", **{**REDRAWN, "fleet": fleet})
    drawn = [[half.request(t)(m).spec for m in members] for t in range(1, 201)]
    again = [[half.request(t)(m).spec for m in members] for t in range(1, 201)]
    assert drawn == again and [a for a, _ in drawn] != [b for _, b in drawn]
    counts = Counter(spec for pair in drawn for spec in pair)
    assert counts["cnn2@0.25"] == pytest.approx(400 * 2 / 3, abs=40)
    for member in members:
        sent = half.request(3)(member)
        tree.check_like(sent.w, half.task.expected(sent.spec), "w")


def test_an_upload_is_checked_against_the_rate_that_was_sent() -> None:
    half, members = half_with("cnn2@0.5", "cnn2@0.25", **REDRAWN)
    t = next(t for t in range(1, 50) if half.request(t)(members[0]).spec == "cnn2@0.25")
    sent = half.request(t)(members[0])
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
        specs = [half.request(entry["round"])(member).spec for member in members]
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
