"""The battery: what every method must do, whatever it computes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

import client_app.app
from client_app.methods import HANDLERS
from common.methods import CONFIGS
from common.records import Records, tensors
from deploy.run.loopback import Loopback
from server_app.methods import METHODS
from server_app.stopped import Stopped
from tests.conftest import TinyRun, flat, play

# What a method needs to be quick or to fit the toy data, beyond the tiny run of conftest.
OVERRIDES: dict[str, dict[str, Any]] = {
    "fedgkt": {"fleet": "cnn2@0.5,cnn3@0.5", "global_model": "cnn3@0.5"},
    **{
        name: {
            "data__public": 0.6,
            "data__samples": 200,
            f"{name}.embed-epochs": 1,
            f"{name}.server-epochs": 4,
            **({f"{name}.incentive-epochs": 1} if name == "i-dl-mh" else {}),
        }
        for name in ("dl-sh", "dl-mh", "i-dl-mh")
    },
    "fedin": {"fleet": "cnn2@0.5,cnn3@0.5", "rounds": 2, "fedin__samples": 4},
    "fedkf": {"fedkf__latent": 8, "fedkf__generator_width": 8, "fedkf__slots_in_memory": 2},
    "fedgkd": {"fedgkd__buffer": 1},
    "fedgen": {"fedgen__server_steps": 4, "fedgen__hidden": 16, "fedgen__server_batch_size": 16},
    "dafl": {
        "fleet": "lenet5@0.5",
        "train__epochs": 4,
        "train__lr": 0.1,
        "dafl__latent": 8,
        "dafl__generator_width": 8,
        "dafl__generator_lr": 0.01,
        "dafl__lambda_a": 0.0,
        "dafl__server_steps": 100,
        "dafl__server_batch_size": 16,
        "dafl__student_lr": 0.05,
    },
    "lwn": {
        "lwn__server_epochs": 1,
        "lwn__noise_batches": 30,
        "lwn__noise_batch_size": 32,
        "lwn__server_lr": 0.05,
    },
    "hetfedfl": {
        "hetfedfl__server_epochs": 1,
        "hetfedfl__noise_batches": 30,
        "hetfedfl__noise_batch_size": 32,
        "hetfedfl__server_lr": 0.05,
    },
    "fedftg": {
        "fedftg__iterations": 2,
        "fedftg__generated": 8,
        "fedftg__latent": 8,
        "fedftg__generator_width": 8,
    },
    "fedftg-noise": {
        "fedftg_noise__server_epochs": 1,
        "fedftg_noise__noise_batches": 4,
        "fedftg_noise__noise_batch_size": 16,
    },
}

every_method = pytest.mark.parametrize("method", sorted(METHODS))


def config(method: str, out: Path, **changes: Any) -> dict[str, Any]:
    return flat(out, method=method, **{**OVERRIDES.get(method, {}), **changes})


def test_a_method_has_its_contract_and_both_halves() -> None:
    assert CONFIGS.keys() == METHODS.keys() == HANDLERS.keys()


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


class Backwards(Loopback):  # type: ignore[misc]
    """Delivers the last reply first."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return list(super().pull_messages(list(message_ids)))[::-1]


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


class Crash(Exception):
    """Stands for the power cut."""


class Crashing(Loopback):  # type: ignore[misc]
    """Dies in the middle of round 2, when the clients have trained and nobody knows."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        names = super().push_messages(sent)
        if sent[0].metadata.message_type == "train" and sent[0].metadata.group_id == "2":
            raise Crash
        return names


class Tampering(Loopback):  # type: ignore[misc]
    """Applies ``tamper`` to client 1's answers to training messages."""

    tamper: Any = None

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._changed(reply) for reply in super().pull_messages(list(message_ids))]

    def _changed(self, reply: Message) -> Message:
        if reply.metadata.src_node_id == 2 and reply.metadata.message_type == "train":
            reply.content = type(self).tamper(reply.content)
        return reply


def nan_in_the_first_tensor(content: RecordDict) -> RecordDict:
    return changed_tensor(content, lambda flat: flat.index_fill(0, torch.tensor(0), float("nan")))


def changed_tensor(content: RecordDict, change: Any) -> RecordDict:
    from flwr.app import Array, ArrayRecord

    record = content["arrays"]
    assert isinstance(record, ArrayRecord)
    arrays = dict(record)
    name = next(name for name in arrays if name.startswith("float"))
    numbers = torch.from_numpy(arrays[name].numpy().copy())
    arrays[name] = Array(change(numbers).numpy())
    content["arrays"] = ArrayRecord(arrays)
    return content


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


def fail_client(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Client k's training raises; everybody else's is untouched."""
    from client_app.participant import Participant

    honest = Participant.train

    def train(self: Participant, *args: Any, **kwargs: Any) -> Any:
        if self.k == k:
            raise OSError("disk full")
        return honest(self, *args, **kwargs)

    monkeypatch.setattr(Participant, "train", train)


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
