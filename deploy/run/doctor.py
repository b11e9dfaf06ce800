"""``fedmosaic doctor``: what is installed, what data is found, which runtimes work."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.data import DATASETS
from common.version import code_version
from deploy.run.runtimes import Check, checks

NO_OPTIONS = {
    "dir": "",
    "download": False,
    "image_size": 0,
    "samples": 0,
    "test_samples": 0,
    "seed": 0,
}


def examine(console: Console) -> bool:
    """Print every finding; True if the loopback runtime or both others are out of order."""
    console.print(f"fedmosaic {code_version()}, Python {platform.python_version()}")
    console.print(f"torch {torch.__version__}, devices: {', '.join(_devices())}")
    console.print(_table("data set", [_data_set(name) for name in DATASETS]))
    found = checks()
    console.print(
        _table("runtime", [Check("loopback", True, "works"), *map(_runtime, found.items())])
    )
    return not any(all(check.good for check in group) for group in found.values())


def _devices() -> list[str]:
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [
            f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
        ]
    return names


def _runtime(item: tuple[str, list[Check]]) -> Check:
    name, group = item
    bad = [f"{check.name}: {check.finding}" for check in group if not check.good]
    return Check(name, not bad, "; ".join(bad) or "works")


def _data_set(name: str) -> Check:
    """Load it from the default places; what a loader says is the finding."""
    options = SimpleNamespace(name=name, **NO_OPTIONS)
    try:
        data = DATASETS[name].load(options)
    except ValueError as error:
        return Check(name, False, str(error).partition("\n")[0])
    shape = "×".join(map(str, data.shape))
    return Check(name, True, f"{len(data.y)} + {len(data.y_test)} samples, {shape}")


def _table(title: str, rows: list[Check]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for check in rows:
        mark = Text("yes", style="green") if check.good else Text("no", style="yellow")
        table.add_row(check.name, mark, Text(check.finding))
    return table
