"""DL-SH with an incentive, and clients that say nothing and take what the server gives back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from client_app.methods import dl_mh, dl_sh
from common.incentive import Reward
from common.methods.dl_sh import Up
from server_app.distil.public_set import PublicSet
from tests.support.tiny import flat, play

SMALL: dict[str, Any] = {
    "method": "dl-sh",
    "rounds": 1,
    "data__public": 0.6,
    "data__samples": 200,
    "confidence.epochs": 1,
    "ensemble.epochs": 4,
}
REWARDED = {"dl-sh.incentive": "model", "dl-sh.incentive-epochs": 3}


def ups(
    tmp_path, monkeypatch, half: Any = dl_sh.DLSH, **changes: Any
) -> tuple[dict[int, Any], Any]:
    """What each client sent, and the targets of the server's model."""
    seen: dict[int, Any] = {}
    targets: list[torch.Tensor] = []
    train, distil = half.train, PublicSet.distil

    def remembering(self, down):
        seen[self.participant.k] = train(self, down)
        return seen[self.participant.k]

    def looking(self, t, y):
        targets.append(y)
        return distil(self, t, y)

    with monkeypatch.context() as patched:
        patched.setattr(half, "train", remembering)
        patched.setattr(PublicSet, "distil", looking)
        play(flat(tmp_path, **{**SMALL, **changes}))
    return seen, targets[0]


def test_where_every_client_has_every_class_the_incentive_is_that_of_i_dl_mh(tmp_path):
    ours = play(flat(tmp_path / "a", **SMALL, **REWARDED))
    theirs = {**SMALL, "method": "i-dl-mh", "i-dl-mh.incentive-epochs": 3}
    full = play(flat(tmp_path / "b", **theirs))
    assert ours.weights == full.weights
    assert ours.journal[1]["incentive"] == full.journal[1]["incentive"]
    assert sorted(ours.journal[1]["incentive"]["clients"]) == ["0", "1", "2", "3"]


def test_the_incentive_leaves_the_servers_model_as_it_is_and_is_counted(tmp_path):
    plain = play(flat(tmp_path / "a", **SMALL))
    rewarded = play(flat(tmp_path / "b", **SMALL, **REWARDED))
    assert rewarded.weights == plain.weights
    assert "incentive" not in plain.journal[1]
    each = 120 * 3
    assert plain.journal[1]["cost"]["numbers"] == 4 * (each + 120)
    assert rewarded.journal[1]["cost"]["numbers"] == 4 * (each + 120) + 4 * each


def test_a_client_without_most_classes_gains_and_its_next_round_begins_there(tmp_path, monkeypatch):
    starts: list[tuple[int, bool]] = []
    honest = dl_sh.DLSH._rewarded

    def rewarded(self, t):
        found = honest(self, t)
        starts.append((t, found is not None))
        return found

    monkeypatch.setattr(dl_sh.DLSH, "_rewarded", rewarded)
    one_class = {"clients": 3, "data__partition": "niid1", "data__niid_scale": "adapt"}
    more = {"rounds": 2, "confidence.epochs": 5, "ensemble.epochs": 15}
    longer = {"dl-sh.incentive": "model", "dl-sh.incentive-epochs": 8}
    result = play(flat(tmp_path, **{**SMALL, **one_class, **more, **longer}))
    first = result.journal[1]["incentive"]
    assert first["before"] == pytest.approx(1 / 3) and first["after"] > 0.6
    assert (1, False) in starts and (2, True) in starts and (2, False) not in starts


def test_the_reward_of_the_ensemble_is_what_the_servers_model_learnt(tmp_path, monkeypatch):
    rewards: list[Reward] = []
    honest = dl_sh.DLSH.second

    def second(self, down):
        rewards.append(down)
        return honest(self, down)

    monkeypatch.setattr(dl_sh.DLSH, "second", second)
    _, targets = ups(tmp_path, monkeypatch, **{"dl-sh.incentive": "ensemble"})
    assert len(rewards) == 4
    assert all(reward.y is None and torch.equal(reward.theta, targets) for reward in rewards)


def test_a_free_rider_says_nothing_surely_and_the_others_say_what_they_said(tmp_path, monkeypatch):
    honest, _ = ups(tmp_path / "a", monkeypatch, clients=2)
    riding, targets = ups(tmp_path / "b", monkeypatch, clients=2, **{"dl-sh.free-riders": 1})
    assert torch.equal(riding[0].theta, torch.full((120, 3), 1 / 3))
    assert torch.equal(riding[0].w, torch.ones(120))
    assert torch.equal(riding[1].theta, honest[1].theta)
    assert torch.equal(riding[1].w, honest[1].w)
    # By hand for the first image: two weights, of 1 and of w, at T = 0.1.
    w = float(honest[1].w[0])
    share = 1 / (1 + math.exp((1 - w) / 0.1))
    expected = (1 - share) / 3 + share * honest[1].theta[0]
    assert torch.allclose(targets[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("exchange", "said"), [("logits", 0.0), ("probs", 1 / 3)], ids=["logits", "probs"]
)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_free_riders_answer_passes_the_servers_check(
    tmp_path, monkeypatch, exchange: str, said: float, dtype: str
):
    settings = {"dl-sh.exchange": exchange, "wire.dtype": dtype, "dl-sh.free-riders": 1}
    sent, targets = ups(tmp_path, monkeypatch, **settings)
    up: Up = sent[0]
    told = up.said(probabilities=exchange == "probs")
    assert torch.allclose(told, torch.full((120, 3), said), atol=1e-6)
    assert bool(targets.isfinite().all())


def test_a_free_rider_among_clients_of_few_classes_spreads_over_its_own(tmp_path, monkeypatch):
    few = {"clients": 2, "data__partition": "niid3", "data__niid_scale": "adapt"}
    sent, _ = ups(
        tmp_path, monkeypatch, dl_mh.DLMH, data__per_client=30, method="dl-mh",
        **few, **{"dl-mh.free-riders": 1},
    )  # fmt: skip
    columns = len(sent[0].d)
    assert torch.allclose(sent[0].theta, torch.full((120, columns), 1 / columns))
    assert float(sent[1].theta.std()) > 0


def test_a_free_rider_takes_the_reward_and_has_trained_for_itself(tmp_path):
    given = {**SMALL, "method": "i-dl-mh", "i-dl-mh.incentive-epochs": 3}
    honest = play(flat(tmp_path / "a", **given)).journal[1]["incentive"]["clients"]
    riding = play(flat(tmp_path / "b", **given, **{"i-dl-mh.free-riders": 1}))
    clients = riding.journal[1]["incentive"]["clients"]
    assert sorted(clients) == ["0", "1", "2", "3"]
    assert {k: gain["before"] for k, gain in clients.items()} == {
        k: gain["before"] for k, gain in honest.items()
    }
    assert riding.journal[1]["cost"]["numbers"] == 4 * (120 * 3 + 120 + 3) + 4 * 120 * 3
