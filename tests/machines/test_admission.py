"""Before a SuperNode starts: would the server let the key in, and do both sides speak TLS?"""

import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
)
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server

from deploy.flower import admission
from deploy.flower.admission import await_admission
from deploy.flower.control import Control
from deploy.flower.processes import free_ports
from deploy.machines.certificates import Certificates, make
from tests.support.commandline import typed
from tests.support.waiting import PATIENCE

STILL = "SuperNode with node ID 7 could not be activated."


class Fleet(FleetServicer):  # type: ignore[misc]
    """Refuses with each of ``refusals``, then lets in."""

    def __init__(self, *refusals: str) -> None:
        self.refusals, self.keys, self.left = list(refusals), set[bytes](), list[int]()

    def ActivateNode(  # noqa: N802
        self, request: ActivateNodeRequest, context: grpc.ServicerContext
    ) -> ActivateNodeResponse:
        self.keys.add(request.public_key)
        assert {"flwr-signature-bin", "flwr-timestamp"} <= set(dict(context.invocation_metadata()))
        if self.refusals:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusals.pop(0))
        return ActivateNodeResponse(node_id=7)

    def DeactivateNode(  # noqa: N802
        self, request: DeactivateNodeRequest, context: grpc.ServicerContext
    ) -> DeactivateNodeResponse:
        self.left.append(request.node_id)
        return DeactivateNodeResponse()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("admission"), ["127.0.0.1"], clients=1)


class Server:
    """A Fleet API over TLS at ``address``."""

    def __init__(self, fleet: Fleet, keys: Certificates) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        add_FleetServicer_to_server(fleet, self._server)
        pair = (keys.server_key.read_bytes(), keys.server.read_bytes())
        port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def served(keys: Certificates) -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.stop()


def ask(
    fleet: Fleet, keys: Certificates, served: list[Server], patience: float = 900.0
) -> list[str]:
    served.append(Server(fleet, keys))
    told: list[str] = []
    await_admission(served[-1].address, keys, 0, told.append, patience=patience, pause=0.01)
    return told


def test_a_key_that_is_let_in_is_signed_off_again_so_that_the_supernode_can_sign_on(
    keys: Certificates, served: list[Server]
) -> None:
    fleet = Fleet()
    assert ask(fleet, keys, served) == []
    assert fleet.left == [7] and len(fleet.keys) == 1


def test_a_client_that_was_killed_waits_until_the_server_has_noticed_and_says_so_once(
    keys: Certificates, served: list[Server]
) -> None:
    fleet = Fleet(STILL, STILL, STILL)
    (told,) = ask(fleet, keys, served)
    assert "counts client 0 as connected" in told and "within 60 s" in told
    assert fleet.left == [7] and not fleet.refusals


def test_a_key_in_use_elsewhere_is_told_after_the_patience(
    keys: Certificates, served: list[Server]
) -> None:
    fleet = Fleet(*[STILL] * 10_000)
    with pytest.raises(RuntimeError, match=r"client 0 is connected already: its key .*0\.key"):
        ask(fleet, keys, served, patience=0.1)
    assert fleet.left == []


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("No SuperNode found with the given public key.", ValueError, r"register 0\.pub with"),
        ("Invalid timestamp", RuntimeError, "refuses client 0: Invalid timestamp"),
        ("Method not found!", RuntimeError, r"is not a SuperLink's Fleet API \(port 9092"),
    ],
    ids=["unregistered", "another-reason", "another-api"],
)
def test_what_waiting_does_not_help_against_is_told_at_once(
    said: str, kind: type[Exception], message: str, keys: Certificates, served: list[Server]
) -> None:
    with pytest.raises(kind, match=message) as refusal:
        ask(Fleet(said), keys, served)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_server_that_does_not_answer_is_left_to_the_supernode(keys: Certificates) -> None:
    (port,) = free_ports(1)
    await_admission(f"127.0.0.1:{port}", keys, 0, pytest.fail)


def test_a_file_that_is_no_key_is_told_with_its_name(keys: Certificates, tmp_path: Path) -> None:
    (tmp_path / "0.key").write_text("nothing")
    elsewhere = Certificates(keys.folder, tmp_path, keys.ca)
    with pytest.raises(ValueError, match=r"0\.key cannot be read: it holds no OpenSSH key"):
        await_admission("127.0.0.1:1", elsewhere, 0, pytest.fail)


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


SAID = {True: "uses TLS: pass --ca FILE", False: "does not use TLS: check the port"}


@pytest.mark.parametrize("spoken", [True, False])
def test_only_the_other_kind_is_refused(addresses: dict[bool, str], spoken: bool) -> None:
    admission.check_tls(addresses[spoken], spoken)
    with pytest.raises(RuntimeError, match=SAID[spoken]):
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
    with (
        Control(addresses[spoken], None if spoken else keys.ca, tmp_path) as control,
        pytest.raises(RuntimeError, match=SAID[spoken]),
    ):
        control.await_answer(2 * PATIENCE)


@pytest.mark.parametrize("spoken", [True, False])
def test_a_node_is_told_before_it_starts(
    addresses: dict[bool, str], keys: Certificates, tmp_path: Path, spoken: bool
) -> None:
    trust = ["--insecure"] if spoken else ["--ca", keys.ca]
    own = ("--clients", 1, "--k", 0, "--home", tmp_path)
    done = typed("node", "--superlink", addresses[spoken], *own, *trust)
    assert done.returncode == 1 and SAID[spoken] in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
