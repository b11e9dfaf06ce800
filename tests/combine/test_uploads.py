"""The cache of active-inactive aggregation: bounded in memory, whole after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.records import StateDict
from server_app.combine.uploads import Slots


def model(value: float) -> StateDict:
    return {"w": torch.tensor([value])}


def values(slots: Slots, clients: list[int]) -> list[float]:
    return [state["w"].item() for state in slots.states(clients, model(-1.0))]


def test_a_slot_holds_the_latest_upload(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 10)
    slots.put(1, [(0, model(1)), (2, model(2))])
    slots.put(2, [(2, model(3))])
    assert values(slots, [0, 1, 2]) == [1, -1, 3]
    assert 1 not in slots and 2 in slots


def test_no_more_than_the_limit_stay_in_memory_and_none_is_lost(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 2)
    for t in range(1, 6):
        slots.put(t, [(t, model(t))])
    assert sorted(slots.held) == [4, 5]
    assert values(slots, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    assert len(list((tmp_path / "slots").iterdir())) == 3


def test_a_limit_of_zero_keeps_everything_on_disk(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 0)
    slots.put(1, [(0, model(1)), (1, model(2))])
    assert slots.held == {} and values(slots, [0, 1]) == [1, 2]


def test_what_a_checkpoint_names_is_there_until_the_next_one(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 0)
    slots.put(1, [(0, model(1))])
    held, rounds = dict(slots.held), dict(slots.rounds)  # the checkpoint of round 1
    slots.put(2, [(0, model(2))])  # and a crash before that of round 2
    again = Slots(tmp_path, 0)
    again.restore(held, rounds)
    assert values(again, [0]) == [1]
    again.put(2, [(0, model(2))])
    assert values(again, [0]) == [2]
    again.put(3, [])
    assert [path.name for path in (tmp_path / "slots").iterdir()] == ["0-2.safetensors"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"7-3\.safetensors is missing: .* client 7"):
        Slots(tmp_path, 0).restore({}, {7: 3})
