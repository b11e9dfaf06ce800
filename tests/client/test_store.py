"""What a client keeps is durable, and a repeated round starts where it started."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from client_app.store import Store
from common.exchange import model_file
from common.exchange.records import Records, StateDict
from common.files import write_atomically


class Memory(Records):
    w: StateDict


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "e", 0)


def saved(store: Store, *rounds: int) -> Store:
    """Save the number of each round as its state."""
    for t in rounds:
        store.save_state(t, memory(t))
    return store


def memory(value: float) -> Memory:
    return Memory(w={"w": torch.tensor([value])})


def recalled(store: Store, t: int) -> float | None:
    found = store.load_state(t, Memory)
    return None if found is None else found.w["w"].item()


def test_a_round_reads_the_newest_state_before_it_also_if_it_is_repeated(store: Store) -> None:
    assert recalled(store, 1) is None
    saved(store, 2, 5)
    assert (recalled(store, 2), recalled(store, 5), recalled(store, 9)) == (None, 2.0, 5.0)
    assert [store.newest(t) for t in (1, 2, 4, 9)] == [0, 2, 2, 5]
    assert recalled(saved(store, 1, 2, 3), 3) == 2.0
    store.save_state(3, memory(33.0))
    assert (recalled(store, 3), recalled(store, 4)) == (2.0, 33.0)
    assert store.rounds() == [2, 3]


def test_a_round_that_is_named_is_kept_beside_the_newest_two(store: Store) -> None:
    for t in (1, 2, 3, 4):
        store.save_state(t, memory(t), also=1)
    assert store.rounds() == [1, 3, 4] and store.load_state_of(1, Memory).w["w"].item() == 1.0
    store.save_state(5, memory(5), also=4)
    assert store.rounds() == [4, 5]
    with pytest.raises(ValueError, match=r"/e/0/3/.*Memory.safetensors is missing: .* of round 3"):
        store.load_state_of(3, Memory)


def test_an_earlier_run_under_the_same_name_is_not_remembered(store: Store) -> None:
    assert recalled(saved(store, 8, 9), 1) is None
    saved(store, 1)
    assert store.rounds() == [1] and recalled(store, 2) == 1.0


def test_clients_and_experiments_are_apart_and_a_damaged_file_is_named(store, tmp_path) -> None:
    saved(store, 1)
    assert recalled(Store(tmp_path, "e", 1), 2) is None
    assert recalled(Store(tmp_path, "f", 0), 2) is None
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"Memory.safetensors cannot be read"):
        store.load_state(2, Memory)
    with pytest.raises(ValueError, match="state-dir .* cannot be written"):
        Store(path, "e", 0).load_state(1, Memory)


def test_a_full_disk_is_one_line_and_leaves_the_last_state_whole(store, tmp_path, monkeypatch):
    saved(store, 1)
    (kept,) = store.folder.glob("1/*")
    before = kept.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match=r"state-dir .* cannot be written: No space left"):
            store.save_state(2, memory(2.0))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    assert kept.read_bytes() == before
    assert store.rounds() == [1] and recalled(store, 3) == 1.0
    assert recalled(saved(store, 2), 3) == 2.0


def test_a_round_that_was_never_written_does_not_push_out_the_state_before_it(store: Store) -> None:
    saved(store, 1, 2)
    (store.folder / "3").mkdir()  # as after a kill between making the folder and filling it
    (store.folder / "3" / ".Memory.safetensors.99").write_bytes(b"half")
    saved(store, 4)
    assert recalled(store, 4) == 2.0 and store.rounds() == [2, 4]
    assert not (store.folder / "3").exists()


@pytest.mark.parametrize("t", [2, 3])
def test_a_process_that_comes_too_late_changes_nothing(t: int, tmp_path: Path) -> None:
    """One that slept while its successor went on, or that was asked the same round again."""
    late = saved(Store(tmp_path, "e", 0), 1)
    for done in range(2, t + 1):
        saved(Store(tmp_path, "e", 0), done)
    with pytest.raises(ValueError, match="written by another process .* is discarded"):
        late.save_state(2, memory(-1.0))
    assert recalled(Store(tmp_path, "e", 0), 4) == float(t)


def test_a_killed_writer_leaves_nothing_that_fills_the_disk(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    for writer in (dead.pid, os.getppid()):
        (tmp_path / f".file.{writer}").write_bytes(b"half")
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".file.{os.getppid()}", "file"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file beyond ``size`` bytes; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_write_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model_file.write(path, {"w": torch.ones(3)})
    for write, content in (
        (write_atomically, bytes(5000)),
        (model_file.write, {"w": torch.ones(5000)}),
    ):
        with largest_file(1000), pytest.raises(OSError) as raised:
            write(path, content)
        assert f"File too large: '{path}'" in str(raised.value)
    assert torch.equal(model_file.load(path)["w"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_nobody_else_can_read_what_a_client_keeps(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = saved(Store(tmp_path / "state", "e", 0), 1)
    finally:
        os.umask(before)
    (kept,) = store.folder.glob("*/*.safetensors")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_store_keeps_what_a_server_that_goes_back_asks_for(tmp_path: Path) -> None:
    store = saved(Store(tmp_path, "e", 0, keep=3), 1, 2, 5, 6, 7)
    assert store.rounds() == [2, 5, 6, 7]  # back to 4 at most: that reads round 2's
    assert recalled(Store(tmp_path, "e", 0, keep=3), 5) == 2.0
    store.save_state(5, memory(55.0))
    assert store.rounds() == [2, 5] and recalled(store, 6) == 55.0
