"""The battery: what every method must do, whatever it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

import client_app.app
import client_app.methods
import server_app.methods
from client_app.handler import Handler
from common.config import MethodOptions
from common.methods import names, options
from common.records import Records, tensors
from server_app.method import Method
from server_app.stopped import Stopped
from tests.support.battery import (
    Backwards,
    Crash,
    Crashing,
    Tampering,
    changed_tensor,
    config,
    fail_client,
)
from tests.support.tiny import TinyRun, play

every_method = pytest.mark.parametrize("method", names())


def test_a_method_has_its_contract_and_both_halves() -> None:
    for name in names():
        assert issubclass(options(name), MethodOptions)
        assert issubclass(server_app.methods.half(name), Method)
        assert issubclass(client_app.methods.half(name), Handler)


@every_method
def test_it_learns_above_chance(method: str, tmp_path: Path) -> None:
    result = play(config(method, tmp_path, rounds=3))
    scored = result.summary["accuracy"]
    final = scored["final"] if scored else None
    if final is None:
        final = np.mean([client["accuracy"] for client in result.summary["clients"]])
    assert final > 0.5, f"3 classes, accuracy {final}"
    assert result.summary["status"] == "completed" and result.summary["failures"] == []


@every_method
def test_it_repeats_bit_for_bit_and_leaves_the_global_random_state_alone(
    method: str, tmp_path: Path
) -> None:
    first = play(config(method, tmp_path / "a"))
    torch.rand(3), np.random.rand(3)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    second = play(config(method, tmp_path / "b"))
    assert first.timeless == second.timeless
    assert first.weights == second.weights
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


@every_method
def test_another_seed_gives_another_result(method: str, tmp_path: Path) -> None:
    first = play(config(method, tmp_path / "a", rounds=1))
    second = play(config(method, tmp_path / "b", rounds=1, seed=2))
    assert first.weights != second.weights or first.timeless != second.timeless


@every_method
def test_the_order_of_replies_changes_nothing(method: str, tmp_path: Path) -> None:
    forwards = play(config(method, tmp_path / "a"))
    settings = config(method, tmp_path / "b")
    backwards = play(settings, Backwards(settings["clients"], settings, workers=0))
    assert forwards.timeless == backwards.timeless
    assert forwards.weights == backwards.weights


@every_method
def test_a_resumed_run_equals_an_uninterrupted_one(method: str, tmp_path: Path) -> None:
    whole = play(config(method, tmp_path / "whole", rounds=3))
    part = tmp_path / "part"
    with pytest.raises(Crash):
        settings = config(method, part, rounds=3)
        play(settings, Crashing(settings["clients"], settings, workers=0))
    resumed = play(config(method, part, rounds=3, resume=True))
    assert resumed.timeless == whole.timeless
    assert resumed.weights == whole.weights


def nan_in_the_first_tensor(content: RecordDict) -> RecordDict:
    return changed_tensor(content, lambda flat: flat.index_fill(0, torch.tensor(0), float("nan")))


def one_number_less(content: RecordDict) -> RecordDict:
    return changed_tensor(content, lambda flat: flat[:-1])


def empty(content: RecordDict) -> RecordDict:
    return RecordDict()


@every_method
@pytest.mark.parametrize("tamper", [nan_in_the_first_tensor, one_number_less, empty])
def test_a_bad_reply_is_reported_and_not_used(method: str, tamper: Any, tmp_path: Path) -> None:
    settings = config(method, tmp_path, rounds=1, min_replies=0.5)
    grid = type("Grid", (Tampering,), {"tamper": staticmethod(tamper)})
    result = play(settings, grid(settings["clients"], settings, workers=0))
    assert result.journal[1]["replied"] == [0, 2, 3]
    (failure,) = result.journal[1]["failures"]
    assert failure["k"] == 1 and "refused" in failure["reason"]


@every_method
def test_a_client_that_raises_stops_the_run_by_default_and_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_client(monkeypatch, 2)
    with pytest.raises(Stopped, match=r"client 2: OSError: disk full"):
        play(config(method, tmp_path, rounds=1))
    assert TinyRun(tmp_path).summary["status"] == "stopped"


@every_method
def test_a_client_that_raises_may_be_left_out(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_client(monkeypatch, 2)
    result = play(config(method, tmp_path, rounds=1, min_replies=0.75))
    assert result.journal[1]["replied"] == [0, 1, 3]
    assert result.journal[1]["failures"] == [{"k": 2, "round": 1, "reason": "OSError: disk full"}]


@every_method
def test_every_payload_survives_packing_and_unpacking(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Records] = []
    pack = Records.pack

    def remembering(self: Records) -> RecordDict:
        seen.append(self)
        return pack(self)

    monkeypatch.setattr(Records, "pack", remembering)
    play(config(method, tmp_path, rounds=1))
    kinds = {type(payload) for payload in seen}
    assert len(kinds) >= 6  # Hello, Peer, Down, Up, Ask, Score
    for payload in seen:
        again = type(payload).unpack(pack(payload))
        assert dict(tensors(again)).keys() == dict(tensors(payload)).keys()
        for (_, a), (_, b) in zip(tensors(again), tensors(payload), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b.cpu())
        saved = tmp_path / "payload.safetensors"
        saved.write_bytes(payload.to_bytes())
        assert pack(type(payload).load(saved)) == pack(payload)


def test_the_battery_drives_the_app_that_is_deployed() -> None:
    from flwr.clientapp import ClientApp

    assert isinstance(client_app.app.app, ClientApp)
