"""``fedmosaic doctor``: what is installed, what data is found, which runtimes work.

Nothing is started: programs are looked up, packages are asked for their version.
"""

import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import final

import torch
from rich.console import Console
from rich.table import Table as RichTable

from common.data import DATASETS
from common.errors import first_line
from common.settings.config import Data
from common.settings.version import code_version
from deploy.flower.processes import executable, free_ports
from deploy.report.table import Cell, Table, terminal

FLOWER_SERIES = "1.31."  #: the series whose programs and Control API the runtimes speak


@final
@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    good: bool
    finding: str  #: one line: what was found, or what is wrong and what would mend it


@final
@dataclass(frozen=True)
class Findings:
    """What this installation is, and what of it works."""

    version: str
    python: str
    torch: str
    devices: list[str]
    data_sets: list[Check]
    runtimes: list[Check]


def examine() -> Findings:
    """Look at everything."""
    versions = (code_version(), platform.python_version(), torch.__version__)
    runtimes = [Check("loopback", True, "works")]
    for name, group in checks().items():
        bad = "; ".join(f"{check.name}: {check.finding}" for check in group if not check.good)
        runtimes.append(Check(name, not bad, bad or "works"))
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    devices = ["cpu", *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in gpus)]
    return Findings(*versions, devices, [_data_set(name) for name in DATASETS], runtimes)


def show(found: Findings, console: Console) -> None:
    """Print every finding."""
    console.print(f"fedmosaic {found.version}, Python {found.python}")
    console.print(f"torch {found.torch}, devices: {', '.join(found.devices)}")
    console.print(_table("data set", found.data_sets))
    console.print(_table("runtime", found.runtimes))


def checks() -> dict[str, list[Check]]:
    """All checks by runtime: ``grpc`` and ``ray``; a runtime works if all of its checks are good.

    The loopback runtime needs nothing beyond the packages that import this module.
    """
    shared = [flower_version(), _loopback_ports()]
    shared += map(program, ("flwr", "flower-superlink", "flower-superexec"))
    others = map(program, ("flower-supernode", "flwr-serverapp", "flwr-clientapp"))
    return {
        "grpc": [*shared, *others],
        "ray": [*shared, _ray_version(), program("flwr-simulation")],
    }


def flower_version() -> Check:
    """Is Flower installed, in the series that the runtimes were written for?"""
    found = _version("flwr")
    good = found is not None and found.startswith(FLOWER_SERIES)
    wanted = f"{found or 'not installed'}; wanted is {FLOWER_SERIES}x"
    return Check("flwr", good, found if found and good else wanted)


def program(name: str) -> Check:
    """Is this program of Flower's beside the running Python or on PATH, and from there?"""
    try:
        found = executable(name)
    except RuntimeError as error:
        return Check(name, False, str(error))
    if not os.path.samefile(Path(found).parent, Path(sys.executable).parent):
        return Check(name, True, f"{found}; of another environment than {sys.executable}")
    return Check(name, True, found)


def _ray_version() -> Check:
    """Is Ray installed, for this Python and platform?"""
    found = _version("ray")
    here = f"Python {platform.python_version()} on {sys.platform}-{platform.machine()}"
    missing = f"not installed for {here}; pip install 'fedmosaic[sim]' or choose another runtime"
    return Check("ray", found is not None, found or missing)


def _loopback_ports() -> Check:
    """May this user listen on 127.0.0.1?"""
    try:
        free_ports(2)
    except OSError as error:
        return Check("ports", False, f"cannot listen on 127.0.0.1: {error}")
    return Check("ports", True, "can listen on 127.0.0.1")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _data_set(name: str) -> Check:
    """Load it from the default places; what a loader says is the finding."""
    try:
        data = DATASETS[name].load(Data(name=name))
    except (ValueError, ModuleNotFoundError) as error:
        return Check(name, False, first_line(error))
    shape = "×".join(map(str, data.shape))
    return Check(name, True, f"{len(data.y)} + {len(data.y_test)} samples, {shape}")


def _table(title: str, rows: list[Check]) -> RichTable:
    lines = [(row.name, "yes" if row.good else Cell("no", best=True), row.finding) for row in rows]
    (drawn,) = terminal(Table((title, "", "finding"), lines, "l"), ruled=False)
    return drawn
