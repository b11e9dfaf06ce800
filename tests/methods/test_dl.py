"""DL-SH, DL-MH and I-DL-MH: confidences, schemas, rewards, and clients that only take."""

import math
from typing import Any

import pytest
import torch

from client_app.methods import dl_mh, dl_sh
from client_app.methods.i_dl_mh import IDLMH
from client_app.participant import Participant
from common import models
from common.data import divide
from common.exchange.protocol import Request
from common.models.masked import Masked
from common.parse import parse
from common.techniques.ensemble import client_weights, weighted_sum
from deploy.run.loopback import Loopback
from server_app.distillation import public_set
from server_app.distillation.public_set import PublicSet
from server_app.stopped import Stopped
from tests.support.recorded_calls import record_calls
from tests.support.tiny import TinyRun, flat, play, under

SMALL: dict[str, Any] = {"rounds": 1, "data__public": 0.6, "data__samples": 200}
SMALL |= {"confidence__epochs": 1, "ensemble__epochs": 4}
SH = {"method": "dl-sh", **SMALL}
MH = {"method": "dl-mh", **SMALL}
I_MH = {"method": "i-dl-mh", **SMALL, "i_dl_mh__incentive_epochs": 3}
LONG = {**I_MH, "confidence__epochs": 5, "ensemble__epochs": 15, "i_dl_mh__incentive_epochs": 8}
ONE_CLASS_EACH = {"clients": 3, "data__partition": "niid1", "data__niid_scale": "adapt"}
FEW_CLASSES = {"clients": 2, "data__partition": "niid3", "data__niid_scale": "adapt"}
REWARDED = {"dl-sh.incentive": "model", "dl-sh.incentive-epochs": 3}


def test_a_public_set_that_differs_in_one_sample_is_refused_by_name(tmp_path, monkeypatch):
    honest = Participant.public.func

    def public(self):
        images = honest(self).clone()
        images[5, 0, 0, 0] ^= self.k == 2
        return images

    monkeypatch.setattr(Participant, "public", property(public))
    with pytest.raises(Stopped, match="client 2 has another public set"):
        play(flat(tmp_path, **SH))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda d: d._replace(public=d.public.flip(0)), "client 0 has another public set than the"),
        (lambda d: d._replace(labels=None), "the public set has no known classes"),
    ],
    ids=["another public set", "no labels"],
)
def test_a_server_whose_public_set_does_not_suit_stops(tmp_path, monkeypatch, change, line: str):
    monkeypatch.setattr(public_set, "divide", lambda *given: change(divide(*given)))
    with pytest.raises(Stopped, match=line):
        play(flat(tmp_path, **SH, **{"dl-sh.targets": "labels"}))


def test_the_clients_shares_are_cut_from_the_pool(tmp_path):
    result = play(flat(tmp_path, **SH, data__test_fraction=0.0))
    assert sum(client["n"] for client in result.journal[0]["clients"]) == 80  # 200 − 120


def exchanged(
    tmp_path, monkeypatch, half: Any = dl_sh.DLSH, **changes: Any
) -> tuple[list[Any], torch.Tensor, TinyRun]:
    """What the clients sent, what the server learnt from it, and the run."""
    with monkeypatch.context() as patch:
        seen = record_calls(patch, half, "train", lambda up, half, _: (half.participant.k, up))
        targets = record_calls(patch, PublicSet, "distil", lambda _, public_set, t, y: y)
        run = play(flat(tmp_path, **{**SH, **changes}))
    replies = dict(seen)
    return [replies[k] for k in sorted(replies)], targets[0], run


def test_the_server_learns_the_weighted_sum_of_what_the_clients_sent(tmp_path, monkeypatch):
    replies, targets, _ = exchanged(tmp_path, monkeypatch, **{"confidence.temperature": 0.3})
    W = client_weights(torch.stack([reply.w for reply in replies]), 0.3)
    expected = weighted_sum([reply.theta for reply in replies], W)
    assert torch.allclose(targets, expected, atol=1e-6)
    assert torch.allclose(targets.sum(1), torch.ones(120), atol=1e-5)


def test_plain_distillation_takes_the_mean_and_sends_no_confidence(tmp_path, monkeypatch):
    replies, targets, result = exchanged(tmp_path, monkeypatch, **{"confidence.kind": "uniform"})
    assert all(reply.w is None for reply in replies)
    mean = torch.stack([reply.theta for reply in replies]).mean(0)
    assert torch.allclose(targets, mean, atol=1e-6)
    assert result.journal[1]["cost"]["numbers"] == 4 * 120 * 3


def test_weighted_logits_become_a_distribution_after_the_sum(tmp_path, monkeypatch):
    replies, targets, _ = exchanged(tmp_path, monkeypatch, **{"dl-sh.exchange": "logits"})
    assert float(replies[0].theta.min()) < 0
    assert torch.allclose(targets.sum(1), torch.ones(120), atol=1e-5)


def test_odin_scores_fill_zero_to_one(tmp_path, monkeypatch):
    replies, _, _ = exchanged(tmp_path, monkeypatch, **{"confidence.kind": "odin"})
    assert all(float(reply.w.min()) == 0 and float(reply.w.max()) == 1 for reply in replies)


def test_the_upper_bound_learns_the_true_classes(tmp_path, monkeypatch):
    _, targets, result = exchanged(tmp_path, monkeypatch, **{"dl-sh.targets": "labels"})
    assert torch.equal(targets, public_labels(result))


def public_labels(result) -> torch.Tensor:
    """The public labels of the tiny run's configuration."""
    config = parse(flat(result.folder, **SH))
    return divide(config.data, config.partition_seed).labels


@pytest.mark.parametrize("balance", ["weights", "sampling"])
@pytest.mark.parametrize("start", ["local", "scratch"])
def test_every_way_to_grow_a_confidence_gives_another_one(tmp_path, monkeypatch, balance, start):
    plain, _, _ = exchanged(tmp_path / "a", monkeypatch)
    replies, _, _ = exchanged(
        tmp_path / "b", monkeypatch, **{"confidence.balance": balance, "confidence.init": start}
    )
    assert not torch.equal(replies[0].w, plain[0].w)
    assert torch.equal(replies[0].theta, plain[0].theta)  # the classifier is none of its business


def test_a_confidence_is_higher_on_images_like_the_clients_own(tmp_path, monkeypatch):
    longer = {**ONE_CLASS_EACH, "confidence__epochs": 5}
    replies, _, result = exchanged(tmp_path, monkeypatch, **longer)
    labels = public_labels(result)
    for k, reply in enumerate(replies):  # client k holds class k alone
        assert float(reply.w[labels == k].mean()) > 5 * float(reply.w[labels != k].mean())


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("uint8", 1)])
def test_a_number_takes_as_many_bytes_as_the_wire_says(tmp_path, dtype: str, size: int):
    result = play(flat(tmp_path, **SH, wire__dtype=dtype))
    numbers = 4 * (120 * 3 + 120)
    assert result.journal[1]["cost"]["numbers"] == numbers
    assert result.summary["cost"]["bytes_per_number"] >= size
    replies = result.journal[1]["bytes"]["arrays_up"]
    assert numbers * size <= replies < numbers * size + 200  # and the scores' few numbers


def test_classes_that_nobody_holds_are_reported_and_scored_apart(tmp_path):
    digits = under("data", name="digits", samples=1000, partition="niid1", per_client=60)
    result = play(flat(tmp_path, **{**SH, **digits, "clients": 2, "fleet": "mlp@0.25"}))
    assert result.journal[0]["uncovered"] == result.summary["uncovered"] == [4, 5, 6, 7, 8, 9]
    all_, covered = result.summary["accuracy"]["final"], result.summary["accuracy_covered"]
    assert covered > 2 * all_ > 0


def test_clients_send_only_the_columns_of_their_classes(tmp_path):
    result = play(flat(tmp_path, **MH, **FEW_CLASSES, data__per_client=30))
    classes = [len(client["classes"]) for client in result.journal[0]["clients"]]
    expected = sum(120 * d + 120 + d for d in classes)
    assert result.journal[1]["cost"]["numbers"] == expected


def test_clients_of_a_single_class_still_teach_by_their_confidence(tmp_path):
    longer = {"confidence__epochs": 5, "ensemble__epochs": 15}
    result = play(flat(tmp_path, **{**MH, **longer, **ONE_CLASS_EACH}))
    assert [client["classes"] for client in result.journal[0]["clients"]] == [[0], [1], [2]]
    assert result.summary["metrics"]["client_test_accuracy"] == pytest.approx(1 / 3)
    assert result.summary["accuracy"]["final"] > 0.6


@pytest.mark.parametrize("rule", ["uhc-ce", "uhc-mf"])
def test_uhc_learns_where_classes_overlap(tmp_path, rule: str):
    uhc = {"confidence__kind": "uniform", "ensemble__aggregation": rule, "ensemble__epochs": 10}
    result = play(flat(tmp_path, **{**MH, "rounds": 2, **uhc}))
    assert result.summary["accuracy"]["final"] > 0.6


def test_the_own_model_answers_in_global_classes(tmp_path):
    result = play(flat(tmp_path, **MH, **ONE_CLASS_EACH, train__epochs=5))
    scores = result.journal[1]["scores"]
    assert [score["accuracy"] for score in scores] == [1.0, 1.0, 1.0]  # each holds one class


def test_masked_outputs_give_other_classes_no_probability():
    net = models.build("mlp@0.25", (1, 8, 8), 2, seed=0)
    x = torch.zeros(3, 1, 8, 8)
    p = torch.softmax(Masked(net, [1, 4], 6)(x), 1)
    assert p[:, [0, 2, 3, 5]].sum() == 0
    assert torch.allclose(p[:, [1, 4]], torch.softmax(net(x), 1))


def test_full_rewards_lift_a_client_far_above_what_its_own_classes_allow(tmp_path):
    result = play(flat(tmp_path / "full", **LONG, **ONE_CLASS_EACH))
    incentive = result.journal[1]["incentive"]
    assert incentive["before"] == pytest.approx(1 / 3) and incentive["after"] > 0.6
    assert sorted(incentive["clients"]) == ["0", "1", "2"]
    assert result.summary["incentive"] == incentive
    masked = {**LONG, **ONE_CLASS_EACH, "i-dl-mh.incentive": "masked"}
    limited = play(flat(tmp_path / "masked", **masked)).journal[1]["incentive"]
    assert limited["after"] <= 1 / 3 + 1e-9, "the share of its classes"


@pytest.mark.parametrize(("offered", "node"), [(True, 1), (False, 2)], ids=["declines", "accepts"])
def test_a_node_decides_whether_it_takes_the_reward(tmp_path, offered: bool, node: int):
    config = flat(tmp_path, **LONG, **{"i-dl-mh.opt-in": offered})
    nodes = {node: {"incentive": not offered}}
    result = play(config, Loopback(4, config, workers=0, node_configs=nodes))
    rewarded = {k for k in range(4) if (k != node) == offered}
    assert set(map(int, result.journal[1]["incentive"]["clients"])) == rewarded


@pytest.mark.parametrize(("kind", "each"), [("masked", 120), ("full", 120 * 3)])
def test_the_reward_is_counted_as_the_paper_does(tmp_path, kind: str, each: int):
    result = play(flat(tmp_path, **LONG, **{"i-dl-mh.incentive": kind}))
    assert result.journal[1]["cost"]["numbers"] == 4 * (120 * 3 + 120 + 3) + 4 * each


def test_masked_labels_travel_as_one_byte_each(tmp_path, monkeypatch):
    seen = record_calls(monkeypatch, IDLMH, "second", lambda _, half, request: request)
    play(flat(tmp_path, **LONG, **{"i-dl-mh.incentive": "masked"}))
    assert len(seen) == 4
    assert all(reward.y.dtype == torch.uint8 and reward.theta is None for reward in seen)


def test_a_client_that_fails_in_the_second_exchange_is_named(tmp_path, monkeypatch):
    honest = IDLMH.second

    def second(self, request):
        if self.participant.k == 3:
            raise OSError("disk full")
        return honest(self, request)

    monkeypatch.setattr(IDLMH, "second", second)
    result = play(flat(tmp_path, **LONG))
    (failure,) = result.journal[1]["failures"]
    assert failure == {"k": 3, "round": 1, "reason": "OSError: disk full", "kind": "client error"}
    assert sorted(result.journal[1]["incentive"]["clients"]) == ["0", "1", "2"]


@pytest.mark.full
def test_the_next_round_goes_on_from_the_rewarded_model(tmp_path, monkeypatch):
    def start(weights, half, t):
        return t, None if weights is None else weights["head.bias"].shape

    starts = record_calls(monkeypatch, IDLMH, "start", start)
    result = play(flat(tmp_path, **{**LONG, "rounds": 2}, **ONE_CLASS_EACH))
    assert (2, torch.Size([2])) in starts  # narrowed from three classes to its own
    # Own models, scored after the last round on shares of one class each, are the widened ones.
    assert all(0 <= score["accuracy"] <= 1 for score in result.journal[2]["scores"])


def test_a_method_without_a_second_exchange_says_so(tmp_path):
    one = Participant(parse(flat(tmp_path, **MH)), {"partition-id": 0}, "test")
    with pytest.raises(ValueError, match="DLMH has no second exchange"):
        dl_mh.DLMH(one).second(Request())


@pytest.mark.full
def test_where_every_client_has_every_class_the_incentive_is_that_of_i_dl_mh(tmp_path):
    ours = play(flat(tmp_path / "a", **SH, **REWARDED))
    full = play(flat(tmp_path / "b", **I_MH))
    plain = play(flat(tmp_path / "c", **SH))
    assert ours.weights == full.weights == plain.weights, "the server's model stays as it is"
    assert ours.journal[1]["incentive"] == full.journal[1]["incentive"]
    assert sorted(ours.journal[1]["incentive"]["clients"]) == ["0", "1", "2", "3"]
    assert "incentive" not in plain.journal[1]
    numbers = [played.journal[1]["cost"]["numbers"] for played in (plain, ours)]
    assert numbers == [4 * (120 * 3 + 120), 4 * (120 * 3 + 120) + 4 * 120 * 3]


@pytest.mark.full
def test_a_client_without_most_classes_gains_and_its_next_round_begins_there(tmp_path, monkeypatch):
    starts = record_calls(monkeypatch, dl_sh.DLSH, "_rewarded", lambda w, _, t: (t, w is not None))
    more = {"rounds": 2, "confidence__epochs": 5, "ensemble__epochs": 15}
    longer = {"dl-sh.incentive": "model", "dl-sh.incentive-epochs": 8}
    result = play(flat(tmp_path, **{**SH, **ONE_CLASS_EACH, **more, **longer}))
    first = result.journal[1]["incentive"]
    assert first["before"] == pytest.approx(1 / 3) and first["after"] > 0.6
    assert (1, False) in starts and (2, True) in starts and (2, False) not in starts


def test_the_reward_of_the_ensemble_is_what_the_servers_model_learnt(tmp_path, monkeypatch):
    rewards = record_calls(monkeypatch, dl_sh.DLSH, "second", lambda _, half, request: request)
    _, targets, _ = exchanged(tmp_path, monkeypatch, **{"dl-sh.incentive": "ensemble"})
    assert len(rewards) == 4
    assert all(reward.y is None and torch.equal(reward.theta, targets) for reward in rewards)


def test_a_free_rider_says_nothing_surely_and_the_others_say_what_they_said(tmp_path, monkeypatch):
    honest, _, _ = exchanged(tmp_path / "a", monkeypatch, clients=2)
    changes = {"clients": 2, "dl-sh.free-riders": 1}
    riding, targets, _ = exchanged(tmp_path / "b", monkeypatch, **changes)
    assert torch.equal(riding[0].theta, torch.full((120, 3), 1 / 3))
    assert torch.equal(riding[0].w, torch.ones(120))
    assert torch.equal(riding[1].theta, honest[1].theta)
    assert torch.equal(riding[1].w, honest[1].w)
    # By hand for the first image: two weights, of 1 and of w, at T = 0.1.
    w = float(honest[1].w[0])
    share = 1 / (1 + math.exp((1 - w) / 0.1))
    expected = (1 - share) / 3 + share * honest[1].theta[0]
    assert torch.allclose(targets[0], expected, atol=1e-5)


@pytest.mark.parametrize(("exchange", "said"), [("logits", 0.0), ("probs", 1 / 3)])
def test_a_free_riders_answer_passes_the_servers_check(tmp_path, monkeypatch, exchange, said):
    settings = {"dl-sh.exchange": exchange, "wire.dtype": "uint8", "dl-sh.free-riders": 1}
    sent, targets, _ = exchanged(tmp_path, monkeypatch, **settings)
    told = sent[0].said(probabilities=exchange == "probs")
    assert torch.allclose(told, torch.full((120, 3), said), atol=1e-6)
    assert bool(targets.isfinite().all())


def test_a_free_rider_among_clients_of_few_classes_spreads_over_its_own(tmp_path, monkeypatch):
    sent, _, _ = exchanged(
        tmp_path, monkeypatch, dl_mh.DLMH, data__per_client=30, method="dl-mh",
        **FEW_CLASSES, **{"dl-mh.free-riders": 1},
    )  # fmt: skip
    columns = len(sent[0].d)
    assert torch.allclose(sent[0].theta, torch.full((120, columns), 1 / columns))
    assert float(sent[1].theta.std()) > 0


def test_a_free_rider_takes_the_reward_and_has_trained_for_itself(tmp_path):
    honest = play(flat(tmp_path / "a", **I_MH)).journal[1]["incentive"]["clients"]
    riding = play(flat(tmp_path / "b", **I_MH, **{"i-dl-mh.free-riders": 1})).journal[1]
    clients = riding["incentive"]["clients"]
    assert [clients[k]["before"] for k in "0123"] == [honest[k]["before"] for k in "0123"]
    assert riding["cost"]["numbers"] == 4 * (120 * 3 + 120 + 3) + 4 * 120 * 3
