"""What all tests share: one torch thread, Flower's telemetry off, tiny runs on loopback."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import pytest
import torch

torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # no test cuts the power, and a run would wait for 19 writes

from tests.support import rehearsal
from tests.support.tiny import Run, TinyRun, flat, play


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rehearsal", action="store_true", help="the battery on the device of rehearsal.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--rehearsal"):
        rehearsal.device()


@pytest.fixture(scope="module")
def at_hand(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--rehearsal`` everything is computed on that device."""
    with rehearsal.rehearsing() if request.config.getoption("--rehearsal") else nullcontext():
        yield


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(method="fedavg", data__alpha=0.1)``: a tiny run in a folder of its own."""
    count = iter(range(1000))

    def go(**changes: Any) -> TinyRun:
        return play(flat(tmp_path / f"run{next(count)}", **changes))

    return go


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same for runs that are only read: equal settings are played once a session."""

    @cache
    def go(**changes: Any) -> TinyRun:
        return play(flat(tmp_path_factory.mktemp("played"), **changes))

    return go
