"""Before a SuperNode starts: would the server let the key in, and do both sides speak TLS?"""

import contextlib
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

from deploy.flower.certificates import Certificates, make
from deploy.flower.control import Control
from deploy.flower.owner import admission
from deploy.flower.owner.admission import await_admission
from deploy.flower.processes import free_ports
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


@contextlib.contextmanager
def serving(fleet: Fleet, keys: Certificates | None) -> Iterator[str]:
    """Serve a Fleet API, over TLS with ``keys``; yield its address."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add_FleetServicer_to_server(fleet, server)
    if keys is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (keys.server_key.read_bytes(), keys.server.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def ask(fleet: Fleet, keys: Certificates, patience: float = 900.0) -> list[str]:
    told: list[str] = []
    with serving(fleet, keys) as address:
        await_admission(address, keys, 0, told.append, patience=patience, pause=0.01)
    return told


def test_a_key_is_let_in_at_once_or_when_its_killed_client_is_noticed(keys: Certificates) -> None:
    """And it is signed off again, so that the SuperNode can sign on."""
    fleet = Fleet()
    assert ask(fleet, keys) == []
    assert fleet.left == [7] and len(fleet.keys) == 1
    fleet = Fleet(STILL, STILL, STILL)
    (told,) = ask(fleet, keys)
    assert "counts client 0 as connected" in told and "within 60 s" in told
    assert fleet.left == [7] and not fleet.refusals


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
    said: str, kind: type[Exception], message: str, keys: Certificates
) -> None:
    with pytest.raises(kind, match=message) as refusal:
        ask(Fleet(said), keys)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_key_in_use_is_refused_later_than_no_key(keys: Certificates, tmp_path: Path) -> None:
    fleet = Fleet(*[STILL] * 10_000)
    with pytest.raises(RuntimeError, match=r"client 0 is connected already: its key .*0\.key"):
        ask(fleet, keys, patience=0.1)
    assert fleet.left == []
    (tmp_path / "0.key").write_text("nothing")
    elsewhere = Certificates(keys.folder, tmp_path, keys.ca)
    with pytest.raises(ValueError, match=r"0\.key cannot be read: it holds no OpenSSH key"):
        await_admission("127.0.0.1:1", elsewhere, 0, pytest.fail)


@pytest.mark.parametrize("encoded", [True, False])
def test_a_server_of_another_kind_is_refused(
    keys: Certificates, tmp_path: Path, encoded: bool
) -> None:
    said = "uses TLS: pass --ca FILE" if encoded else "does not use TLS: check the port"
    with serving(Fleet(), keys if encoded else None) as address:
        admission.check_tls(address, encoded)
        with pytest.raises(RuntimeError, match=said):
            admission.check_tls(address, not encoded)
        with (
            Control(address, None if encoded else keys.ca, tmp_path) as control,
            pytest.raises(RuntimeError, match=said),
        ):
            control.await_answer(2 * PATIENCE)
        trust = ["--insecure"] if encoded else ["--ca", keys.ca]
        own = ("--clients", 1, "--k", 0, "--home", tmp_path)
        done = typed("node", "--superlink", address, *own, *trust)
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1, done


def test_a_silent_server_is_waited_for(keys: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not there, hangs up, or says nothing."""
    (port,) = free_ports(1)
    await_admission(f"127.0.0.1:{port}", keys, 0, pytest.fail)
    admission.check_tls(f"127.0.0.1:{port}", True)
    admission.check_tls(f"[::1]:{port}", False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        admission.check_tls(address, True)
        thread.join()
        monkeypatch.setattr(admission, "TLS_PATIENCE", 0.1)
        admission.check_tls(address, True)
