"""I-DL-MH: the second exchange, both kinds of reward, who wants one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from client_app.methods import i_dl_mh as half
from common.incentive import Reward
from deploy.run.loopback import Loopback
from tests.support.tiny import flat, play

SMALL: dict[str, Any] = {
    "method": "i-dl-mh",
    "rounds": 1,
    "data__public": 0.6,
    "data__samples": 200,
    "confidence.epochs": 5,
    "ensemble.epochs": 15,
    "i-dl-mh.incentive-epochs": 8,
}
ONE_CLASS_EACH = {"clients": 3, "data__partition": "niid1", "data__niid_scale": "adapt"}


def test_full_rewards_lift_a_client_far_above_what_its_own_classes_allow(tmp_path):
    result = play(flat(tmp_path, **SMALL, **ONE_CLASS_EACH))
    incentive = result.journal[1]["incentive"]
    assert incentive["before"] == pytest.approx(1 / 3)
    assert incentive["after"] > 0.6
    assert sorted(incentive["clients"]) == ["0", "1", "2"]
    assert result.summary["incentive"] == incentive


def test_masked_rewards_cannot_lift_a_client_above_its_share_of_the_classes(tmp_path):
    result = play(flat(tmp_path, **SMALL, **ONE_CLASS_EACH, **{"i-dl-mh.incentive": "masked"}))
    assert result.journal[1]["incentive"]["after"] <= 1 / 3 + 1e-9


def test_a_node_may_decline(tmp_path):
    config = flat(tmp_path, **SMALL)
    nodes = {1: {"incentive": False}}
    result = play(config, Loopback(4, config, workers=0, node_configs=nodes))
    assert sorted(result.journal[1]["incentive"]["clients"]) == ["0", "2", "3"]


def test_a_node_may_accept_what_the_run_does_not_offer_to_all(tmp_path):
    config = flat(tmp_path, **SMALL, **{"i-dl-mh.opt-in": False})
    nodes = {2: {"incentive": True}}
    result = play(config, Loopback(4, config, workers=0, node_configs=nodes))
    assert list(result.journal[1]["incentive"]["clients"]) == ["2"]


def test_where_nobody_wants_it_there_is_no_second_exchange(tmp_path):
    result = play(flat(tmp_path, **SMALL, **{"i-dl-mh.opt-in": False}))
    assert "incentive" not in result.journal[1]
    numbers = 4 * (120 * 3 + 120 + 3)
    assert result.journal[1]["cost"]["numbers"] == numbers


@pytest.mark.parametrize(("kind", "each"), [("masked", 120), ("full", 120 * 3)])
def test_the_reward_is_counted_as_the_paper_does(tmp_path, kind: str, each: int):
    result = play(flat(tmp_path, **SMALL, **{"i-dl-mh.incentive": kind}))
    assert result.journal[1]["cost"]["numbers"] == 4 * (120 * 3 + 120 + 3) + 4 * each


def test_masked_labels_travel_as_one_byte_each(tmp_path, monkeypatch):
    seen: list[Reward] = []
    honest = half.IDLMH.second

    def second(self, down):
        seen.append(down)
        return honest(self, down)

    monkeypatch.setattr(half.IDLMH, "second", second)
    play(flat(tmp_path, **SMALL, **{"i-dl-mh.incentive": "masked"}))
    assert len(seen) == 4
    assert all(reward.y.dtype == torch.uint8 and reward.theta is None for reward in seen)


def test_a_client_that_fails_in_the_second_exchange_is_named_and_the_round_counts(
    tmp_path, monkeypatch
):
    honest = half.IDLMH.second

    def second(self, down):
        if self.participant.k == 3:
            raise OSError("disk full")
        return honest(self, down)

    monkeypatch.setattr(half.IDLMH, "second", second)
    result = play(flat(tmp_path, **SMALL))
    assert result.journal[1]["failures"] == [{"k": 3, "round": 1, "reason": "OSError: disk full"}]
    assert sorted(result.journal[1]["incentive"]["clients"]) == ["0", "1", "2"]


def test_the_next_round_goes_on_from_the_rewarded_model(tmp_path, monkeypatch):
    starts: list[Any] = []
    honest = half.IDLMH.start

    def start(self, t):
        weights = honest(self, t)
        starts.append((t, None if weights is None else weights["head.bias"].shape))
        return weights

    monkeypatch.setattr(half.IDLMH, "start", start)
    result = play(flat(tmp_path, **{**SMALL, "rounds": 2}, **ONE_CLASS_EACH))
    assert (2, torch.Size([2])) in starts  # narrowed from three classes to its own
    # Own models, scored after the last round on shares of one class each, are the widened ones.
    assert all(0 <= score["accuracy"] <= 1 for score in result.journal[2]["scores"])


def test_a_method_without_a_second_exchange_says_so(tmp_path):
    from client_app.methods.dl_mh import DLMH
    from client_app.participant import Participant
    from common.parse import parse
    from common.protocol import Down

    given = {**SMALL, "method": "dl-mh"}
    one = Participant(parse(flat(tmp_path, **given)), {"partition-id": 0}, "test")
    with pytest.raises(ValueError, match="DLMH has no second exchange"):
        DLMH(one).second(Down())
