"""Two machines of a Ray cluster, the second of which dies in a round: the bits of the loopback."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from common.parse import to_toml
from common.settings.version import ROOT
from tests.support import namespaces
from tests.support.commandline import error_of
from tests.support.namespaces import Host
from tests.support.tiny import TinyRun, flat, play
from tests.support.waiting import PATIENCE, until

SMALL = {"clients": 3, "rounds": 2, "fleet": "halting:Net", "data__samples": 60}

RAY_START = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
RAY_START += ["--object-store-memory=100000000", "--disable-usage-stats"]

NET = """
import socket, time
from pathlib import Path
import torch
from torch import nn
HERE = Path({folder!r})

class Net(nn.Sequential):
    "Training of round 2 of a run in HERE/scaffold: never ends on b, and waits for that on a."

    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

    def forward(self, x):
        journal, host = HERE / "scaffold" / "journal.jsonl", socket.gethostname()
        if torch.is_grad_enabled() and host in ("a", "b") and journal.exists():
            if len(journal.read_text().splitlines()) > 1:
                if host == "b":
                    (HERE / "reached").touch()
                while host == "b" or not (HERE / "reached").exists():
                    time.sleep(0.05)
        return super().forward(x)
"""

DRIVER = """
import sys
from pathlib import Path
from deploy.api import run

here, address = Path(sys.argv[1]), sys.argv[2]
for method, out in (("fedavg", "unshared"), ("fedavg", "fedavg"), ("scaffold", "scaffold")):
    try:
        run(here / f"{method}.toml", out=here / out, runtime="ray", ray_address=address, quiet=True)
    except ValueError as error:
        (here / "error").write_text(str(error))
"""


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


def write(path: Path, method: str) -> None:
    """The run as an experiment file."""
    settings = flat(path, method=method, plugins=str(path.parent), **SMALL)
    path.write_text(to_toml(settings | {"out": "", "state-dir": ""}))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ray-address", "127.0.0.1:1"], "--ray-address is for --runtime ray, not loopback"),
        (["--runtime", "ray", "--ray-address", "here"], "--ray-address 'here' is not allowed"),
    ],
)
def test_a_wrong_address_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    error = error_of("run", *arguments, "--out", tmp_path / "out")
    assert said in error and not (tmp_path / "out").exists()


def test_nobody_at_the_address_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = ["-s", "data.name=toy", "-s", "fleet=mlp@0.25", "--out", tmp_path / "out"]
    error = error_of("run", "--runtime", "ray", "--ray-address", f"127.0.0.1:{port}", *words)
    assert f"127.0.0.1:{port}: no connection is possible" in error


@pytest.mark.full
@pytest.mark.skipif(bool(namespaces.allowed()), reason=str(namespaces.allowed()))
def test_a_cluster_gives_loopbacks_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "halting.py").write_text(NET.format(folder=str(tmp_path)))
    alone = {}
    for method in ("fedavg", "scaffold"):
        settings = flat(tmp_path / f"{method}-alone", method=method, plugins=str(tmp_path), **SMALL)
        alone[method] = play(settings)
        write(tmp_path / f"{method}.toml", method)
    (tmp_path / "unshared").mkdir()
    with tempfile.TemporaryDirectory(prefix="r-") as short, namespaces.Network() as network:
        a, b = network.host("a"), network.host("b")
        b.run(["mount", "-t", "tmpfs", "none", str(tmp_path / "unshared")]).check_returncode()
        address, log = start([a, b], Path(short)), tmp_path / "driver.log"
        command = [sys.executable, "-c", DRIVER, str(tmp_path), address]
        driver = a.start(command, environment(), log)
        reached = tmp_path / "reached"
        until(log.read_text, lambda: reached.exists() or driver.poll() is not None)
        assert reached.exists(), log.read_text()
        for process in b.processes():
            with contextlib.suppress(ProcessLookupError):  # it ended with another
                os.kill(process, signal.SIGKILL)
        assert driver.wait(PATIENCE) == 0, log.read_text()
    assert "b (" in (tmp_path / "error").read_text()
    assert f"does not have {tmp_path / 'unshared'}" in (tmp_path / "error").read_text()
    for method, run in alone.items():
        there = TinyRun(tmp_path / method)
        assert there.timeless == run.timeless and there.weights == run.weights, method


# The small network that such tests run on: names, wires, and that nothing of it is left.

LISTEN = "import socket; s = socket.create_server(('', 9000)); print('up', flush=True); s.accept()"
REACH = (
    "import socket, sys; socket.create_connection((sys.argv[1], 9000), timeout=float(sys.argv[2]))"
)


def reaches(host: Host, name: str, seconds: float = PATIENCE) -> bool:
    return host.run([sys.executable, "-c", REACH, name, str(seconds)]).returncode == 0


def started(host: Host, script: str, log: Path) -> subprocess.Popen[bytes]:
    """A process that has printed that it is up."""
    process = host.start([sys.executable, "-c", script], log=log)
    until("up", lambda: "up" in log.read_text())
    return process


@pytest.mark.skipif(bool(namespaces.allowed()), reason=str(namespaces.allowed()))
def test_hosts_find_each_other_by_name_and_have_their_own_loopback(tmp_path: Path) -> None:
    with namespaces.Network() as network:
        server, client = network.host("server"), network.host("client")
        started(server, LISTEN, tmp_path / "log")
        assert not reaches(client, "localhost", 2)
        assert reaches(client, "server")
        assert client.run(["hostname"]).stdout == "client\n"
        assert client.run(["pwd"], cwd=tmp_path).stdout == f"{tmp_path}\n"


@pytest.mark.skipif(bool(namespaces.allowed()), reason=str(namespaces.allowed()))
def test_a_cut_wire_loses_what_is_sent_until_it_is_mended(tmp_path: Path) -> None:
    with namespaces.Network() as network:
        server, client = network.host("server"), network.host("client")
        started(server, LISTEN, tmp_path / "log")
        client.cut()
        assert not reaches(client, "server", 2)
        client.mend()  # then the neighbours look for each other anew
        until("the server", lambda: reaches(client, "server", 2))
