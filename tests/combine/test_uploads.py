"""The cache of overall aggregation: bounded in memory, whole after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.methods.qffl import Up
from server_app.combine.oca import Uploads


def upload(value: float) -> Up:
    return Up(experiment="e", w={"w": torch.tensor([value])}, loss=abs(value))


def cache(folder: Path, limit: int) -> Uploads[Up]:
    return Uploads(Up, folder, limit)


def values(uploads: Uploads[Up], clients: list[int]) -> list[float]:
    """What each client uploaded last; −1 for who never did."""
    found = [uploads.get(k) if k in uploads else upload(-1.0) for k in clients]
    assert all(up.loss == abs(up.w["w"].item()) for up in found), "whole uploads, not weights alone"
    return [up.w["w"].item() for up in found]


def test_a_slot_holds_the_latest_upload(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 10)
    uploads.put(1, [(0, upload(1)), (2, upload(2))])
    uploads.put(2, [(2, upload(3))])
    assert values(uploads, [0, 1, 2]) == [1, -1, 3]
    assert 1 not in uploads and 2 in uploads


def test_no_more_than_the_limit_stay_in_memory_and_none_is_lost(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 2)
    for t in range(1, 6):
        uploads.put(t, [(t, upload(t))])
    assert sorted(uploads.held) == [4, 5]
    assert values(uploads, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    assert len(list((tmp_path / "uploads").iterdir())) == 3


def test_of_one_round_the_smaller_ks_stay_in_memory(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 2)
    uploads.put(1, [(k, upload(k)) for k in range(4)])
    assert sorted(uploads.held) == [0, 1]


def test_a_limit_of_zero_keeps_everything_on_disk(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 0)
    uploads.put(1, [(0, upload(1)), (1, upload(2))])
    assert uploads.held == {} and values(uploads, [0, 1]) == [1, 2]


def test_what_a_checkpoint_names_is_there_until_the_next_one(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 0)
    uploads.put(1, [(0, upload(1))])
    held = {k: dict(up) for k, up in uploads.held.items()}  # the checkpoint of round 1
    rounds = dict(uploads.rounds)
    uploads.put(2, [(0, upload(2))])  # and a crash before that of round 2
    again = cache(tmp_path, 0)
    again.restore(held, rounds)
    assert values(again, [0]) == [1]
    again.put(2, [(0, upload(2))])
    assert values(again, [0]) == [2]
    again.put(3, [])
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == ["0-2.safetensors"]


def test_what_was_in_memory_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    uploads = cache(tmp_path, 1)
    uploads.put(1, [(0, upload(1)), (1, upload(2))])
    again = cache(tmp_path, 1)
    again.restore({k: dict(up) for k, up in uploads.held.items()}, uploads.rounds)
    assert sorted(again.held) == [0] and values(again, [0, 1]) == [1, 2]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"7-3\.safetensors is missing: .* client 7"):
        cache(tmp_path, 0).restore({}, {7: 3})
