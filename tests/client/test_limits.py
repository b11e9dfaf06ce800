"""Limits of one client: memory from its node config, and a device that others do not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from client_app.participant import Participant
from common.parse import parse
from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from tests.support.tiny import flat, play

HUNGRY = """
import resource, torch
from client_app.node import limit_memory

def fits(megabytes):
    try:
        torch.zeros(megabytes * 250_000)
        return True
    except (RuntimeError, MemoryError):
        return False

used = sum(
    int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")
) // 1000
limit_memory(used + 300)
print(fits(100), fits(600))
limit_memory(0)
print(fits(600))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_memory_beyond_the_limit_fails_and_the_process_lives_on() -> None:
    done = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_a_limit_of_one_client_does_not_stay_for_the_next_in_the_same_process(
    tmp_path: Path,
) -> None:
    import resource

    config = parse(flat(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        Participant(config, {"partition-id": 0, "memory-mb": 64_000}, "test")
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 64_000 * 10**6
        Participant(config, {"partition-id": 1}, "test")
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_device_that_a_client_lacks_stops_the_run_by_name(tmp_path: Path) -> None:
    config = flat(tmp_path, method="fedavg", clients=2)
    lacking = {1: {"device": "cuda:99"}}
    with (
        Loopback(2, config, workers=0, node_configs=lacking) as grid,
        pytest.raises(Stopped, match='device = "cuda:99" is not here'),
    ):
        play(config, grid)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_cpu_client_and_a_gpu_client_learn_together(tmp_path: Path) -> None:
    config = flat(tmp_path, method="fedorion", clients=2, fleet="cnn2@0.5,mlp@0.25")
    devices = {0: {"device": "cpu"}, 1: {"device": "cuda"}}
    with Loopback(2, config, workers=0, node_configs=devices) as grid:
        run = play(config, grid)
    assert all(entry["replied"] == [0, 1] for entry in run.journal[1:])
