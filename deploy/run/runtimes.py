"""Which runtimes this installation has: the checks behind the operator's ``doctor``.

Nothing is started: programs are looked up, packages are asked for their version.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import final

from deploy.flower.processes import executable, free_ports

FLOWER_SERIES = "1.31."  #: the series whose programs and Control API the launchers speak
GRPC_PROGRAMS = (
    "flwr",
    "flower-superlink",
    "flower-supernode",
    "flower-superexec",
    "flwr-serverapp",
    "flwr-clientapp",
)
RAY_PROGRAMS = ("flwr", "flower-superlink", "flower-superexec", "flwr-simulation")


@final
@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    good: bool
    finding: str  #: one line: what was found, or what is wrong and what would mend it


def flower_version() -> Check:
    """Is Flower installed, in the series that the launchers were written for?"""
    found = _version("flwr")
    if found is None:
        return Check("flwr", False, f"not installed; wanted is {FLOWER_SERIES}x")
    good = found.startswith(FLOWER_SERIES)
    return Check("flwr", good, found if good else f"{found}; wanted is {FLOWER_SERIES}x")


def programs(names: tuple[str, ...]) -> list[Check]:
    """Is each of Flower's programs beside the running Python or on PATH, and from there?"""
    return [_program(name) for name in names]


def ray_version() -> Check:
    """Is Ray installed, for this Python and platform?"""
    found = _version("ray")
    here = f"Python {platform.python_version()} on {sys.platform}-{platform.machine()}"
    missing = f"not installed for {here}; install flwr[simulation] or choose another runtime"
    return Check("ray", found is not None, found or missing)


def loopback_ports() -> Check:
    """May this user listen on 127.0.0.1?"""
    try:
        free_ports(2)
    except OSError as error:
        return Check("ports", False, f"cannot listen on 127.0.0.1: {error}")
    return Check("ports", True, "can listen on 127.0.0.1")


def checks() -> dict[str, list[Check]]:
    """All checks by runtime: ``grpc`` and ``ray``; a runtime works if all of its checks are good.

    The loopback runtime needs nothing beyond the packages that import this module.
    """
    shared = [flower_version(), loopback_ports()]
    return {
        "grpc": [*shared, *programs(GRPC_PROGRAMS)],
        "ray": [*shared, ray_version(), *programs(RAY_PROGRAMS)],
    }


def _program(name: str) -> Check:
    try:
        found = executable(name)
    except RuntimeError as error:
        return Check(name, False, str(error))
    if not os.path.samefile(Path(found).parent, Path(sys.executable).parent):
        return Check(name, True, f"{found}; of another environment than {sys.executable}")
    return Check(name, True, found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
