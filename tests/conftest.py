"""What all tests share: one torch thread, Flower's telemetry off, tiny runs on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import pytest
import torch

torch.set_num_threads(1)

from tests.support.tiny import TinyRun, flat, play

pytest_plugins = ["tests.support.processor_time"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first: one of two processes begins with them while the other does the rest."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., TinyRun]:
    """``run(method="fedavg", data__alpha=0.1)``: a tiny run in a folder of its own."""
    count = iter(range(1000))

    def go(**changes: Any) -> TinyRun:
        return play(flat(tmp_path / f"run{next(count)}", **changes))

    return go
