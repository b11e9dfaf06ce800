"""The battery: what every method must do, whatever it computes.

A method's first three rounds are played once and are the reference for what learns, repeats, goes
on and is packed. With ``--rehearsal`` it runs on the device of ``tests/support/rehearsal.py``.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

import client_app.app
import client_app.methods
import server_app.methods
from client_app.handler import Handler
from common.exchange.records import Records, tensors
from common.methods import facts, options
from common.settings.config import MethodOptions
from common.settings.facts import Facts
from server_app.method import Method
from server_app.stopped import Stopped
from tests.support import battery
from tests.support.recorded_calls import record_calls
from tests.support.tiny import TinyRun, play

pytestmark = pytest.mark.usefixtures("at_hand")
every_method = pytest.mark.parametrize("method", battery.tiers(battery.METHODS), scope="module")
families = battery.of_families(battery.METHODS)
every_family = pytest.mark.parametrize("method", families, scope="module")


@dataclass(frozen=True)
class Reference:
    """Three rounds of a method, and all that was packed meanwhile."""

    run: TinyRun
    packed: list[Records]


@pytest.fixture(scope="module")
def reference(method: str, at_hand: None, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    with pytest.MonkeyPatch.context() as patch:
        packed = record_calls(patch, Records, "pack", lambda _, payload: payload)
        run = play(battery.config(method, tmp_path_factory.mktemp(method), rounds=3))
    return Reference(run, packed)


def test_a_method_has_its_contract_and_both_halves() -> None:
    for name in battery.METHODS:
        assert issubclass(options(name), MethodOptions)
        assert issubclass(server_app.methods.half(name), Method)
        assert issubclass(client_app.methods.half(name), Handler)


@every_method
def test_it_learns_above_chance(method: str, reference: Reference) -> None:
    result = reference.run
    scored = result.summary["accuracy"]
    final = scored["final"] if scored else None
    if final is None:
        final = np.mean([client["accuracy"] for client in result.summary["clients"]])
    assert final > 0.5, f"3 classes, accuracy {final}"
    assert result.summary["status"] == "completed" and result.summary["failures"] == []


@every_method
def test_what_is_kept_and_scored_is_in_the_contract(method: str, reference: Reference) -> None:
    stated, run = facts(method), reference.run
    if stated == Facts():
        return  # a plug-in need not state any
    kept = any((run.folder / "state").rglob("*.safetensors"))
    assert kept == bool(stated.kept)
    assert (run.summary["accuracy"] is not None) == bool(stated.whole)


@every_method
def test_it_repeats_bit_for_bit_in_any_order_of_replies_and_leaves_the_global_random_state_alone(
    method: str, reference: Reference, tmp_path: Path
) -> None:
    torch.rand(3), np.random.rand(3)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    again = play(battery.config(method, tmp_path, rounds=3), battery.Backwards)
    assert again.timeless == reference.run.timeless
    assert again.weights == reference.run.weights
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


@every_family
def test_another_seed_gives_another_run(method: str, reference: Reference, tmp_path: Path) -> None:
    settings = battery.config(method, tmp_path, rounds=3, seed=2)
    with pytest.raises(battery.Crash):
        play(settings, battery.Ending)
    first = TinyRun(tmp_path).timeless
    assert len(first) == 2
    assert first != reference.run.timeless[:2]


@every_method
def test_a_resumed_run_equals_an_uninterrupted_one(
    method: str, reference: Reference, tmp_path: Path
) -> None:
    settings = battery.config(method, tmp_path, rounds=3)
    with pytest.raises(battery.Crash):
        play(settings, battery.Crashing)
    assert TinyRun(tmp_path).timeless == reference.run.timeless[:2]
    resumed = play(battery.config(method, tmp_path, rounds=3, resume=True))
    assert resumed.timeless == reference.run.timeless
    assert resumed.weights == reference.run.weights


def nan_in_the_first_tensor(content: RecordDict) -> RecordDict:
    return battery.changed_tensor(content, lambda x: x.index_fill(0, torch.tensor(0), torch.nan))


def one_number_less(content: RecordDict) -> RecordDict:
    return battery.changed_tensor(content, lambda flat: flat[:-1])


@every_method
def test_a_bad_reply_is_reported_and_not_used(method: str, tmp_path: Path) -> None:
    """A number that is none in round 1, a number too few in round 2, nothing at all in round 3."""
    settings = battery.config(method, tmp_path, rounds=3, min_replies=0.5)
    tampers = (nan_in_the_first_tensor, one_number_less, battery.lost)
    result = play(settings, type("Grid", (battery.Tampering,), {"tampers": tampers}))
    for entry in result.journal[1:]:
        assert entry["replied"] == [0, 2, 3]
        (failure,) = entry["failures"]
        assert failure["k"] == 1 and "refused" in failure["reason"]


@every_family
def test_a_client_that_raises_stops_the_run_by_default_and_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery.fail_client(monkeypatch, 2)
    with pytest.raises(Stopped, match=r"client 2: OSError: disk full"):
        play(battery.config(method, tmp_path, rounds=1))
    assert TinyRun(tmp_path).summary["status"] == "stopped"


@every_family
def test_a_client_that_raises_may_be_left_out(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    battery.fail_client(monkeypatch, 2)
    result = play(battery.config(method, tmp_path, rounds=1, min_replies=0.75))
    assert result.journal[1]["replied"] == [0, 1, 3]
    (failure,) = result.journal[1]["failures"]
    assert failure == {"k": 2, "round": 1, "reason": "OSError: disk full", "kind": "client error"}


@every_family
def test_every_payload_survives_packing_and_unpacking(
    method: str, reference: Reference, tmp_path: Path
) -> None:
    kinds = {type(payload) for payload in reference.packed}
    assert len(kinds) >= 6  # Hello, Peer, Down, Up, Ask, Score
    for payload in reference.packed:
        packed = payload.pack()
        again = type(payload).unpack(packed)
        assert dict(tensors(again)).keys() == dict(tensors(payload)).keys()
        for (_, a), (_, b) in zip(tensors(again), tensors(payload), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b.cpu())
        saved = tmp_path / "payload.safetensors"
        saved.write_bytes(payload.to_bytes())
        assert type(payload).load(saved).pack() == packed


def test_the_battery_drives_the_app_that_is_deployed() -> None:
    from flwr.clientapp import ClientApp

    assert isinstance(client_app.app.app, ClientApp)
