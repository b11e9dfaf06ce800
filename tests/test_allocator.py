"""Thresholds of the allocator: for training, and while a server exchanges large messages."""

import os
import platform
import resource
import subprocess
import sys

import pytest

from common.training import allocator
from server_app import memory

HALF = 10 * (8 << 10)
"""Half of the pages, 4 KiB each, that the blocks of the 20 measured steps of ``STEPS`` take.

Freed blocks that do not fit the next step's exactly let the heap grow once by up to a step's pages.
"""
STEPS = """
import resource, sys, torch
from common.training import device
if sys.argv[1] == "settled":
    device.settle(1)
def step():
    blocks = [torch.ones(1 << 20) for _ in range(8)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""A step of training in small: blocks of 4 MiB that are allocated and freed together."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds of glibc")
def test_memory_that_a_step_of_training_frees_stays_for_the_next_step() -> None:
    def faults(kind: str) -> int:
        unset = ("MALLOC_", "GLIBC_TUNABLES")  # variables that set the same thresholds
        env = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        command = [sys.executable, "-c", STEPS, kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return int(done.stdout)

    scale = resource.getpagesize() / 4096
    assert faults("settled") * scale < HALF < faults("as it is") * scale


def test_thresholds_are_those_of_training_again_after_an_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
