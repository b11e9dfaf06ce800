"""Ray's own command for a machine of a cluster, and the environment of what runs there."""

import os
import sys

from common.version import ROOT

RAY_START = [
    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"),
    *("--object-store-memory=100000000", "--disable-usage-stats"),
]


def environment() -> dict[str, str]:
    """This process's, without what it says of Ray."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return env | {"GRPC_ENABLE_FORK_SUPPORT": "0", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
