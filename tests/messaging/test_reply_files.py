"""Replies lie in files until their round's step is done; nothing else is different."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
import torch

from common.exchange.protocol import ModelReply
from common.exchange.records import StateDict, count_bytes
from common.settings.config import Value
from server_app import memory
from server_app.messaging import exchange, reply_files
from server_app.stopped import Stopped
from tests.support.recorded_calls import record_calls
from tests.support.tiny import flat, play


def mapped(folder: Path) -> int:
    """Files of ``folder`` without a name that this process reads where they lie."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.endswith("(deleted)") and str(folder) in line for line in lines)


def test_every_dtype_and_shape_comes_back_from_a_file(tmp_path: Path) -> None:
    w: StateDict = {
        "large": torch.randn(70, 71),
        "half": torch.randn(3, 5).bfloat16(),
        "yes": torch.tensor([True, False, True]),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }
    content = ModelReply(experiment="run", t=1, k=0, w=w).pack()
    reply_files.move_to_file(content, tmp_path)
    assert all(isinstance(a.data, memoryview) for a in content.array_records["arrays"].values())
    again, there = ModelReply.unpack(content).w, mapped(tmp_path)
    del content
    for name, value in w.items():
        assert again[name].dtype == value.dtype and torch.equal(again[name], value), name
    again["large"].zero_()  # whoever writes to it writes to no file
    assert there == 1 and list(tmp_path.iterdir()) == []
    del again
    memory.free_memory(memory.MUCH)
    assert mapped(tmp_path) == 0


def few_bytes(monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(reply_files, "SMALL", small)
    monkeypatch.setattr(exchange, "LEAST", 1)
    monkeypatch.setattr(exchange, "PORTION", 10**4)  # one or two replies at once


@pytest.mark.parametrize(
    "given",
    [
        {"method": "fedavg", "average.robust": "median", "fleet": "cnn2@0.5"},
        {"method": "fedorion"},
        {"method": "fedorion", "fleet": "cnn2@0.5", "oca.aggregate": "on", "oca.in-memory": 2},
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_the_bits_are_those_of_replies_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Value]
) -> None:
    few_bytes(monkeypatch, 1 << 40)
    before = play(flat(tmp_path / "memory") | given)
    few_bytes(monkeypatch, 0)
    held = record_calls(monkeypatch, tempfile, "TemporaryFile", lambda *_, **named: 1)
    after = play(flat(tmp_path / "files") | given)
    assert len(held) >= 8 and after.weights == before.weights
    names = [{path.name for path in run.folder.iterdir()} for run in (before, after)]
    assert names[0] == names[1]


def test_a_reply_too_large_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_bytes(monkeypatch, 0)
    kept = record_calls(monkeypatch, reply_files, "move_to_file", lambda _, c, f: count_bytes(c))
    with pytest.raises(Stopped, match=r"reply refused: it has .* MB, wire.max-mb = 0.01"):
        play(flat(tmp_path / "run", method="fedavg", wire__max_mb=0.01))
    assert kept and max(kept) <= 10_000


def test_a_full_disk_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_bytes(monkeypatch, 0)

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(Stopped, match=r"run cannot be used: No space left on device, for a client"):
        play(flat(tmp_path / "run", method="fedavg"))
    assert not list((tmp_path / "run").glob("*tmp*"))
