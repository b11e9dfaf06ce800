"""A Ray cluster on the hosts of a test network (``namespaces.py``)."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from common.settings.version import ROOT
from tests.support.namespaces import Host
from tests.support.waiting import until

RAY_START = [
    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"),
    *("--object-store-memory=100000000", "--disable-usage-stats"),
]


def environment() -> dict[str, str]:
    """Return this process's environment without Ray's variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return env | {"GRPC_ENABLE_FORK_SUPPORT": "0", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def start(hosts: Sequence[Host], folder: Path) -> str:
    """Start Ray on all hosts, the first as its head; return the cluster's address.

    ``folder``: folder of logs and sockets; its path must be short.
    """
    address = f"{hosts[0].address}:6379"
    head = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={folder}/ray"]
    for host in hosts:
        log = folder / f"{host.name}.log"
        words = head if host is hosts[0] else [f"--address={address}"]
        host.start([*RAY_START, f"--node-ip-address={host.address}", *words], environment(), log)
        until(f"Ray on {host.name}", partial(_started, log))
    return address


def _started(log: Path) -> bool:
    return "Ray runtime started" in log.read_text()
