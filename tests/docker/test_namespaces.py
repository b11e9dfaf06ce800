"""The small network that other tests run on: names, wires, and that nothing of it is left."""

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


def test_hosts_find_each_other_by_name_and_have_their_own_loopback(tmp_path: Path) -> None:
    with Network() as network:
        server, client = network.host("server"), network.host("client")
        start(server, LISTEN, tmp_path / "log")
        assert not reaches(client, "localhost", 2)
        assert reaches(client, "server")
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
