"""``fedmosaic doctor``: check versions, data sets and runtimes of the installation.

Nothing is started: only the paths of programs and the versions of packages are read.
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

FLOWER_SERIES = "1.31."  #: the series with the programs and the Control API that the runtimes use


@final
@dataclass(frozen=True)
class Check:
    """Result for one program, package, data set or runtime."""

    name: str
    good: bool
    finding: str  #: one line: the place or version, or the problem and its remedy


@final
@dataclass(frozen=True)
class Findings:
    """Versions, devices, data sets and runtimes of this installation."""

    version: str
    python: str
    torch: str
    devices: list[str]
    data_sets: list[Check]
    runtimes: list[Check]


def examine() -> Findings:
    """Check the whole installation."""
    versions = (code_version(), platform.python_version(), torch.__version__)
    runtimes = [Check("loopback", True, "works")]
    for name, group in checks().items():
        bad = "; ".join(f"{check.name}: {check.finding}" for check in group if not check.good)
        runtimes.append(Check(name, not bad, bad or "works"))
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    devices = ["cpu", *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in gpus)]
    return Findings(*versions, devices, [_data_set(name) for name in DATASETS], runtimes)


def show(findings: Findings, console: Console) -> None:
    """Print all findings."""
    console.print(f"fedmosaic {findings.version}, Python {findings.python}")
    console.print(f"torch {findings.torch}, devices: {', '.join(findings.devices)}")
    console.print(_table("data set", findings.data_sets))
    console.print(_table("runtime", findings.runtimes))


def checks() -> dict[str, list[Check]]:
    """Return the checks of the runtimes ``grpc`` and ``ray``, which work if all checks are good.

    The loopback runtime needs no further packages than this module.
    """
    shared = [flower_version(), _loopback_ports()]
    shared += map(program, ("flwr", "flower-superlink", "flower-superexec"))
    others = map(program, ("flower-supernode", "flwr-serverapp", "flwr-clientapp"))
    return {
        "grpc": [*shared, *others],
        "ray": [*shared, _ray_version(), program("flwr-simulation")],
    }


def flower_version() -> Check:
    """Check that Flower is installed in the series that the runtimes need."""
    installed = _version("flwr")
    good = installed is not None and installed.startswith(FLOWER_SERIES)
    wanted = f"{installed or 'not installed'}; wanted is {FLOWER_SERIES}x"
    return Check("flwr", good, installed if installed and good else wanted)


def program(name: str) -> Check:
    """Check that a program of Flower is in the folder of the running Python or on PATH."""
    try:
        path = executable(name)
    except RuntimeError as error:
        return Check(name, False, str(error))
    if not os.path.samefile(Path(path).parent, Path(sys.executable).parent):
        return Check(name, True, f"{path}; of another environment than {sys.executable}")
    return Check(name, True, path)


def _ray_version() -> Check:
    """Check that Ray is installed."""
    installed = _version("ray")
    here = f"Python {platform.python_version()} on {sys.platform}-{platform.machine()}"
    missing = f"not installed for {here}; pip install 'fedmosaic[sim]' or choose another runtime"
    return Check("ray", installed is not None, installed or missing)


def _loopback_ports() -> Check:
    """Check that this user may listen on 127.0.0.1."""
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
    """Load a data set from its default places; the finding is the loader's error, if any."""
    try:
        data = DATASETS[name].load(Data(name=name))
    except (ValueError, ModuleNotFoundError) as error:
        return Check(name, False, first_line(error))
    shape = "×".join(map(str, data.shape))
    return Check(name, True, f"{len(data.y)} + {len(data.y_test)} samples, {shape}")


def _table(title: str, rows: list[Check]) -> RichTable:
    lines = [(row.name, "yes" if row.good else Cell("no", best=True), row.finding) for row in rows]
    (whole,) = terminal(Table((title, "", "finding"), lines, "l"), ruled=False)
    return whole
