"""DL-SH: identities, what the server refuses, what travels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from client_app.methods import dl_sh as half
from common.data import Divided, divide
from common.ensemble import client_weights, weighted_sum
from common.methods.dl_sh import Up
from server_app.distil.public_set import PublicSet
from server_app.stopped import Stopped
from tests.support.battery import Changing
from tests.support.tiny import flat, play

SMALL: dict[str, Any] = {
    "method": "dl-sh",
    "rounds": 1,
    "data__public": 0.6,
    "data__samples": 200,
    "confidence.epochs": 1,
    "ensemble.epochs": 4,
}


def refusal(tmp_path, change, **changes: Any) -> str:
    settings = flat(tmp_path, **{**SMALL, "min_replies": 0.5, **changes})
    grid = Changing.by(Up, change)
    result = play(settings, grid(settings["clients"], settings, workers=0))
    (failure,) = result.journal[1]["failures"]
    assert failure["k"] == 1
    return failure["reason"]


def test_predictions_that_do_not_sum_to_one_are_refused(tmp_path):
    assert "sums to 0.5, not to 1" in refusal(tmp_path, lambda up: {"theta": up.theta * 0.5})


def test_a_public_set_that_differs_in_one_sample_is_refused_with_the_clients_name(
    tmp_path, monkeypatch
):
    from client_app.participant import Participant

    honest = Participant.public.func

    def public(self):
        images = honest(self).clone()
        if self.k == 2:
            images[5, 0, 0, 0] ^= 1
        return images

    monkeypatch.setattr(Participant, "public", property(public))
    with pytest.raises(Stopped, match="client 2 has another public set"):
        play(flat(tmp_path, **SMALL))


def test_a_server_with_another_public_set_than_all_clients_stops(tmp_path, monkeypatch):
    import server_app.distil.public_set as module

    def other(*args):
        divided = divide(*args)
        return Divided(divided.pool, divided.public.flip(0), divided.labels)

    monkeypatch.setattr(module, "divide", other)
    with pytest.raises(Stopped, match="client 0 has another public set than the server"):
        play(flat(tmp_path, **SMALL))


def test_the_clients_shares_are_cut_from_the_pool(tmp_path):
    result = play(flat(tmp_path, **SMALL, data__test_fraction=0.0))
    assert sum(client["n"] for client in result.journal[0]["clients"]) == 80  # 200 − 120


def ups_and_targets(tmp_path, monkeypatch, **changes: Any) -> tuple[list[Up], torch.Tensor, Any]:
    """What the clients sent and what the server learnt from it."""
    seen: dict[str, Any] = {"ups": []}
    train, distil = half.DLSH.train, PublicSet.distil

    def remembering(self, down):
        seen["ups"].append(train(self, down))
        return seen["ups"][-1]

    def looking(self, t, targets):
        seen["targets"] = targets
        return distil(self, t, targets)

    monkeypatch.setattr(half.DLSH, "train", remembering)
    monkeypatch.setattr(PublicSet, "distil", looking)
    result = play(flat(tmp_path, **{**SMALL, **changes}))
    return seen["ups"], seen["targets"], result


def test_the_server_learns_the_weighted_sum_of_what_the_clients_sent(tmp_path, monkeypatch):
    ups, targets, _ = ups_and_targets(tmp_path, monkeypatch)
    W = client_weights(torch.stack([up.w for up in ups]), 0.1)
    expected = weighted_sum([up.theta for up in ups], W)
    assert torch.allclose(targets, expected, atol=1e-6)
    assert torch.allclose(targets.sum(1), torch.ones(120), atol=1e-5)


def test_plain_distillation_takes_the_mean_and_sends_no_confidence(tmp_path, monkeypatch):
    ups, targets, result = ups_and_targets(tmp_path, monkeypatch, **{"confidence.kind": "uniform"})
    assert all(up.w is None for up in ups)
    assert torch.allclose(targets, torch.stack([up.theta for up in ups]).mean(0), atol=1e-6)
    assert result.journal[1]["cost"]["numbers"] == 4 * 120 * 3


def test_a_huge_temperature_is_plain_distillation(tmp_path, monkeypatch):
    ups, targets, _ = ups_and_targets(tmp_path, monkeypatch, **{"confidence.temperature": 1e6})
    assert torch.allclose(targets, torch.stack([up.theta for up in ups]).mean(0), atol=1e-5)


def test_weighted_logits_become_a_distribution_after_the_sum(tmp_path, monkeypatch):
    ups, targets, _ = ups_and_targets(tmp_path, monkeypatch, **{"dl-sh.exchange": "logits"})
    assert float(ups[0].theta.min()) < 0
    assert torch.allclose(targets.sum(1), torch.ones(120), atol=1e-5)


def test_odin_scores_fill_zero_to_one(tmp_path, monkeypatch):
    ups, _, _ = ups_and_targets(tmp_path, monkeypatch, **{"confidence.kind": "odin"})
    assert all(float(up.w.min()) == 0 and float(up.w.max()) == 1 for up in ups)


def test_the_upper_bound_learns_the_true_classes(tmp_path, monkeypatch):
    _, targets, result = ups_and_targets(tmp_path, monkeypatch, **{"dl-sh.targets": "labels"})
    assert torch.equal(targets, public_labels(result))


def public_labels(result) -> torch.Tensor:
    """The public labels of the tiny run's configuration."""
    from common.parse import parse

    config = parse(flat(result.folder, **SMALL))
    labels = divide(config.data, config.partition_seed).labels
    assert labels is not None
    return labels


def test_the_upper_bound_needs_classes_that_are_known(tmp_path, monkeypatch):
    import server_app.distil.public_set as module

    def unlabelled(*args):
        return Divided(*divide(*args)[:2], None)

    monkeypatch.setattr(module, "divide", unlabelled)
    with pytest.raises(Stopped, match="the public set has no known classes"):
        play(flat(tmp_path, **SMALL, **{"dl-sh.targets": "labels"}))


@pytest.mark.parametrize("balance", ["weights", "sampling"])
@pytest.mark.parametrize("start", ["local", "scratch"])
def test_every_way_to_grow_a_confidence_gives_another_one(
    tmp_path, monkeypatch, balance: str, start: str
):
    plain, _, _ = ups_and_targets(tmp_path / "a", monkeypatch)
    ups, _, _ = ups_and_targets(
        tmp_path / "b",
        monkeypatch,
        **{"confidence.balance": balance, "confidence.init": start},
    )
    assert not torch.equal(ups[0].w, plain[0].w)
    assert torch.equal(ups[0].theta, plain[0].theta)  # the classifier is none of its business


def test_a_confidence_is_higher_on_images_like_the_clients_own(tmp_path, monkeypatch):
    ups, _, result = ups_and_targets(
        tmp_path,
        monkeypatch,
        clients=3,
        data__partition="niid1",
        data__niid_scale="adapt",
        **{"confidence.epochs": 5},
    )
    labels = public_labels(result)
    for k, up in enumerate(ups):  # client k holds class k alone
        assert float(up.w[labels == k].mean()) > 5 * float(up.w[labels != k].mean())


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("uint8", 1)])
def test_a_number_takes_as_many_bytes_as_the_wire_says(tmp_path, dtype: str, size: int):
    result = play(flat(tmp_path, **SMALL, wire__dtype=dtype))
    numbers = 4 * (120 * 3 + 120)
    assert result.journal[1]["cost"]["numbers"] == numbers
    assert result.summary["cost"]["bytes_per_number"] >= size
    ups = result.journal[1]["bytes"]["arrays_up"]
    assert numbers * size <= ups < numbers * size + 200  # and the scores' few numbers


def test_eight_bits_change_the_targets_by_less_than_a_hundredth(tmp_path, monkeypatch):
    _, exact, _ = ups_and_targets(tmp_path / "a", monkeypatch)
    _, coarse, _ = ups_and_targets(tmp_path / "b", monkeypatch, wire__dtype="uint8")
    assert 0 < float((exact - coarse).abs().max()) < 0.02


def test_classes_that_nobody_holds_are_reported_and_scored_apart(tmp_path):
    result = play(
        flat(
            tmp_path,
            **{
                **SMALL,
                "data__name": "digits",
                "data__samples": 1000,
                "data__partition": "niid1",
                "data__per_client": 60,
                "clients": 2,
                "fleet": "mlp@0.25",
            },
        )
    )
    assert result.journal[0]["uncovered"] == result.summary["uncovered"] == [4, 5, 6, 7, 8, 9]
    all_, covered = result.summary["accuracy"]["final"], result.summary["accuracy_covered"]
    assert covered > 2 * all_ > 0
