"""A side with TLS and one without: told in a line, and at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from deploy.flower import admission
from deploy.flower.control import Control
from deploy.flower.processes import free_ports
from deploy.machines.certificates import Certificates, make
from tests.support.commandline import fedmosaic
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("tls"), ["127.0.0.1"], clients=1)


@pytest.fixture(scope="module")
def addresses(keys: Certificates) -> Iterator[dict[bool, str]]:
    """A gRPC server with TLS, and one without."""
    pair = (keys.server_key.read_bytes(), keys.server.read_bytes())
    servers = [grpc.server(futures.ThreadPoolExecutor(1)) for _ in range(2)]
    secure = servers[0].add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    plain = servers[1].add_insecure_port("127.0.0.1:0")
    for server in servers:
        server.start()
    yield {True: f"127.0.0.1:{secure}", False: f"127.0.0.1:{plain}"}
    for server in servers:
        server.stop(None).wait()


SAID = {True: "speaks TLS: give --ca FILE", False: "does not speak TLS: is it the right port?"}


@pytest.mark.parametrize("spoken", [True, False])
def test_only_the_other_kind_is_refused(addresses: dict[bool, str], spoken: bool) -> None:
    admission.check_tls(addresses[spoken], spoken)
    with pytest.raises(RuntimeError, match=SAID[spoken].replace("?", r"\?")):
        admission.check_tls(addresses[spoken], not spoken)


def test_a_server_that_is_not_there_or_hangs_up_may_be_about_to_start() -> None:
    (port,) = free_ports(1)
    admission.check_tls(f"127.0.0.1:{port}", True)
    admission.check_tls(f"[::1]:{port}", False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        admission.check_tls(f"127.0.0.1:{listening.getsockname()[1]}", True)
        thread.join()


def test_a_server_that_says_nothing_is_not_waited_for_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "TLS_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        admission.check_tls(f"127.0.0.1:{listening.getsockname()[1]}", True)


@pytest.mark.parametrize("spoken", [True, False])
def test_an_operator_is_told_without_waiting(
    addresses: dict[bool, str], keys: Certificates, tmp_path: Path, spoken: bool
) -> None:
    begin = time.monotonic()
    with (
        Control(addresses[spoken], None if spoken else keys.ca, tmp_path) as control,
        pytest.raises(RuntimeError, match=SAID[spoken].replace("?", r"\?")),
    ):
        control.await_answer(2 * PATIENCE)
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.parametrize("spoken", [True, False])
def test_a_node_is_told_before_it_starts(
    addresses: dict[bool, str], keys: Certificates, tmp_path: Path, spoken: bool
) -> None:
    trust = ["--insecure"] if spoken else ["--ca", keys.ca]
    own = ("--clients", 1, "--k", 0, "--home", tmp_path)
    done = fedmosaic("node", "--superlink", addresses[spoken], *own, *trust)
    assert done.returncode == 1 and SAID[spoken] in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
