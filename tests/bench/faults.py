"""Run the fault tests, keep what happened in each, and write the table of it into the docs.

``python -m tests.bench.faults`` (``make faults``) runs them, those of containers one at a time,
writes ``faults.json`` beside this file and the tables into ``docs/faults-recorded.md``. ``-k
WORDS`` runs those that pytest selects by them; what is not run, or fails, keeps its former line.
``--table`` only writes the tables again.
"""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from deploy.report.table import Table
from tests.bench.record import ROOT, Recorded, collected, main

RECORDED = Path(__file__).with_name("faults.json")
PAGE = ROOT / "docs" / "faults-recorded.md"
COLUMNS = {
    "fault": "fault",
    "seen": "what happens",
    "seconds": "after s",
    "after": "the run",
    "weights": "final weights",
}
ORDER = (
    *("clientapp-early", "clientapp-sigkill", "clientapp-asleep", "slow", "disk-full"),
    *("supernode-sigterm", "supernode-restart", "supernode-sigkill", "supernode-midway"),
    *("network-10s", "network-90s", "serverapp-sigkill", "superlink-sigkill"),
    *("superlink-restart", "launcher-sigkill-1", "launcher-sigkill-2", "launcher-sigkill-3"),
)
NOTHING = 5  #: pytest's exit status if no test is selected
CONTAINER = "container-"  #: names of faults in containers begin with it


def run(workers: int, words: str, recorded: Recorded) -> int:
    """Run the tests, and add what they recorded."""
    machines = ["tests/machines/test_faults.py", "-m", "faults or full"]
    status, found = collected("FAULTS", machines, workers, words)
    containers = ["tests/containers", "-m", "faults"]  # one engine: one at a time
    other, more = collected("FAULTS", containers, 1, words)
    recorded["recorded on"] = {
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "cores": os.cpu_count(),
        "at a time": workers,
    }
    recorded["faults"] = {**recorded.get("faults", {}), **found, **more}
    return 0 if {status, other} <= {0, NOTHING} else 1


def faults(recorded: Recorded) -> Table:
    """What each fault did, and the machine on which it was recorded."""
    names = [n for n in ORDER if n in recorded["faults"]]
    rows = _rows(recorded, names)
    here = recorded["recorded on"]
    note = (
        f"Recorded on {here['cores']} cores, at most {here['at a time']} runs at a time, "
        f"with Flower {here['flwr']} and Python {here['python']}."
    )
    return Table(list(COLUMNS.values()), rows, align="llrll", notes=[note])


def container_faults(recorded: Recorded) -> Table:
    """What each fault of a container did; the seconds count until the end of the run."""
    names = sorted(n for n in recorded["faults"] if n.startswith(CONTAINER))
    columns = [*COLUMNS.values()]
    columns[2] = "s to the end"
    return Table(columns, _rows(recorded, names), align="llrll")


def _rows(recorded: Recorded, names: list[str]) -> list[list[str]]:
    cases = recorded["faults"]
    return [
        [f"{v:.0f}" if key == "seconds" else str(v) for key in COLUMNS for v in (cases[n][key],)]
        for n in names
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__, RECORDED, PAGE, {"faults": faults, "containers": container_faults}, run))
