"""Thresholds of the allocator: for training, and while a server exchanges large messages."""

import ctypes
import os
import subprocess
import sys

import pytest

from common.training import allocator
from server_app import memory

BLOCK = 30 << 20  #: bytes of the block below, within the threshold of training
STEP = """
import ctypes, sys, torch
from common.training import device
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if sys.argv[1] == "settled":
    device.settle(1)
before = libc.mallinfo2()
block = torch.ones(int(sys.argv[2]) // 4)
during = libc.mallinfo2()
del block
after = libc.mallinfo2()
print(during.hblks - before.hblks, after.arena - before.arena)
"""
"""A large block that is allocated and freed, as in a step of training.

Printed by the allocator's own account: how many mappings of their own it took from the system, and
how many bytes the heap has kept of it.
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="thresholds of glibc")
def test_memory_that_a_step_of_training_frees_stays_for_the_next_step() -> None:
    def seen(kind: str) -> list[int]:
        unset = ("MALLOC_", "GLIBC_TUNABLES")  # variables that set the same thresholds
        env = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        command = [sys.executable, "-c", STEP, kind, str(BLOCK)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return [int(number) for number in done.stdout.split()]

    (mappings, kept), (own_mappings, own_kept) = seen("settled"), seen("as it is")
    assert (mappings, own_mappings) == (0, 1)
    assert own_kept < BLOCK / 2 < kept


def test_an_exchange_restores_the_thresholds_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[int, int] = {}

    def mallopt(name: int, value: int) -> int:
        options[name] = value
        return 1

    monkeypatch.setattr(allocator, "_function", {"mallopt": mallopt}.get)
    with pytest.raises(ValueError, match="an exchange fails"), memory.sending(far=True):
        assert options == allocator.SENDING
        raise ValueError("an exchange fails")
    assert options == allocator.COMPUTING
    options.clear()
    with memory.sending(far=False):
        assert options == {}
    assert options == {}
    assert all(allocator.SENDING[name] < value for name, value in allocator.COMPUTING.items())


def test_other_systems_keep_their_allocators_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with memory.sending(far=True):
        memory.free_memory(memory.MUCH)
    assert allocator._function("mallopt") is None
