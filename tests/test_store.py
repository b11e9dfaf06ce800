"""What a client keeps is durable, and a repeated round starts where it started."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from client_app.store import Store
from common.records import Records, StateDict


class Memory(Records):
    w: StateDict


def memory(value: float) -> Memory:
    return Memory(w={"w": torch.tensor([value])})


def recalled(store: Store, t: int) -> float | None:
    found = store.recall(t, Memory)
    return None if found is None else found.w["w"].item()


def test_a_round_reads_the_newest_state_before_it(tmp_path: Path) -> None:
    store = Store(tmp_path, "e", 0)
    assert recalled(store, 1) is None
    store.remember(2, memory(2.0))
    store.remember(5, memory(5.0))
    assert (recalled(store, 2), recalled(store, 5), recalled(store, 9)) == (None, 2.0, 5.0)


def test_repeating_the_newest_round_starts_from_the_same_state(tmp_path: Path) -> None:
    store = Store(tmp_path, "e", 0)
    for t in (1, 2, 3):
        store.remember(t, memory(t))
    assert recalled(store, 3) == 2.0
    store.remember(3, memory(33.0))
    assert (recalled(store, 3), recalled(store, 4)) == (2.0, 33.0)
    assert store.rounds() == [2, 3]


def test_an_earlier_run_under_the_same_name_is_not_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path, "e", 0)
    for t in (8, 9):
        store.remember(t, memory(t))
    assert recalled(store, 1) is None
    store.remember(1, memory(1.0))
    assert store.rounds() == [1] and recalled(store, 2) == 1.0


def test_clients_and_experiments_are_apart(tmp_path: Path) -> None:
    Store(tmp_path, "e", 0).remember(1, memory(1.0))
    assert recalled(Store(tmp_path, "e", 1), 2) is None
    assert recalled(Store(tmp_path, "f", 0), 2) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path, "e", 0)
    store.remember(1, memory(1.0))
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"Memory.safetensors cannot be read"):
        store.recall(2, Memory)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="state-dir .* cannot be written"):
        Store(tmp_path / "file", "e", 0)
