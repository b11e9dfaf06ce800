"""The small network that other tests run on: names, wires, and that nothing of it is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import Host, Network, allowed
from tests.support.waiting import PATIENCE, until

if reason := allowed():
    pytest.skip(reason, allow_module_level=True)

LISTEN = "import socket; s = socket.create_server(('', 9000)); print('up', flush=True); s.accept()"
REACH = (
    "import socket, sys; socket.create_connection((sys.argv[1], 9000), timeout=float(sys.argv[2]))"
)


def reaches(host: Host, name: str, seconds: float = PATIENCE) -> bool:
    return host.run([sys.executable, "-c", REACH, name, str(seconds)]).returncode == 0


def start(host: Host, script: str, log: Path) -> subprocess.Popen[bytes]:
    """A process that has printed that it is up."""
    process = host.start([sys.executable, "-c", script], log=log)
    until("up", lambda: "up" in log.read_text())
    return process


def alive(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_hosts_find_each_other_by_name_and_have_their_own_loopback(tmp_path: Path) -> None:
    with Network() as network:
        server, client = network.host("server", "alias"), network.host("client")
        start(server, LISTEN, tmp_path / "log")
        assert not reaches(client, "localhost", 2)
        assert reaches(client, "alias")
        assert client.run(["hostname"]).stdout == "client\n"
        assert client.run(["pwd"], cwd=tmp_path).stdout == f"{tmp_path}\n"


def test_a_cut_wire_loses_what_is_sent_until_it_is_mended(tmp_path: Path) -> None:
    with Network() as network:
        server, client = network.host("server"), network.host("client")
        start(server, LISTEN, tmp_path / "log")
        client.cut()
        assert not reaches(client, "server", 2)
        client.mend()  # then the neighbours look for each other anew
        until("the server", lambda: reaches(client, "server", 2))


def test_nothing_is_left_of_a_network_whose_test_was_killed() -> None:
    """The process that made the network is killed, as by an out-of-memory killer."""
    script = (
        "import sys, time; from tests.support.namespaces import Network\n"
        "with Network() as network:\n"
        "    host = network.host('a')\n"
        "    pid = host.start(['sleep', '600']).pid\n"
        "    while pid not in host.processes():\n"  # nsenter is not in the namespaces at once
        "        time.sleep(0.01)\n"
        "    print(pid, host._file, flush=True)\n"
        "    time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    ) as maker:
        assert maker.stdout is not None
        number, file = maker.stdout.readline().split()
        pid = int(number)
        assert alive(pid) and Path(file).exists()
        maker.kill()
    until("their end", lambda: not alive(pid) and not Path(file).exists())
