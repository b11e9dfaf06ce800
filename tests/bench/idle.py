"""Memory of a node that waits for work: the processes of ``fedmosaic node`` on this machine."""

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deploy.flower.control import start_superlink
from deploy.flower.processes import Processes
from deploy.flower.warm import LINGER
from tests.bench.memory import size

AIMS = {"warm": 300, "cold": 150}
"""Largest proportional set size in MiB of a node without work, with a warm and a cold start."""
SETTLED = 10.0  #: seconds after which the last process counts as started


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: list[str] = []
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(inner for child in children for inner in tree(int(child)))]


def pss(pids: list[int]) -> float:
    """Return the proportional set size of the processes in MiB; pages in common count once."""
    return sum(size(pid, "Pss") for pid in pids) / 2**20


def memory(start: str) -> dict[str, float]:
    """Return the memory in MiB of a node with a ``start`` (warm or cold): ``idle``, ``largest``.

    It is measured until the warm process has ended, or for ``SETTLED`` seconds.
    """
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        control, fleet = start_superlink(
            processes, Path(name), {}, simulation=False, certificates=None
        )
        with control:
            command = [sys.executable, "-m", "deploy.cli", "node", "--superlink", fleet]
            command += ["--clients", "1", "--k", "0", "--insecure", f"--{start}-start"]
            node = subprocess.Popen([*command, "--home", f"{name}/node"], stdout=subprocess.DEVNULL)
            try:
                while control.online() < 1:
                    time.sleep(0.5)
                largest, since = 0.0, time.monotonic()
                wait = SETTLED + (LINGER if start == "warm" else 0)
                while (passed := time.monotonic() - since) < wait or len(tree(node.pid)) > 3:
                    assert node.poll() is None and passed < 10 * LINGER
                    largest = max(largest, pss(tree(node.pid)))
                    time.sleep(1)
                return {"idle": pss(tree(node.pid)), "largest": largest}
            finally:
                node.terminate()
                node.wait()
