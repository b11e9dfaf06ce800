"""Before a SuperNode starts: would the server let the key in, and do both sides speak TLS?"""

import asyncio
import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
)
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from deploy.flower import control
from deploy.flower.certificates import Certificates, make
from deploy.flower.control import Control
from deploy.flower.owner import admission
from deploy.flower.owner.admission import await_admission
from deploy.flower.processes import environment, executable, free_ports
from deploy.flower.watchdog import end
from deploy.machines import node
from tests.support.commandline import command_line, typed
from tests.support.waiting import PATIENCE, until

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
def serving(
    fleet: Fleet, keys: Certificates | None, port: int = 0, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve a Fleet API, over TLS with ``keys``; yield its address."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add_FleetServicer_to_server(fleet, server)
    if keys is None:
        port = server.add_insecure_port(f"{host}:{port}")
    else:
        pair = (keys.server_key.read_bytes(), keys.server.read_bytes())
        port = server.add_secure_port(f"{host}:{port}", grpc.ssl_server_credentials([pair]))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PAUSE", 0.01)


def ask(fleet: Fleet, keys: Certificates) -> list[str]:
    told: list[str] = []
    with serving(fleet, keys) as address:
        await_admission(address, keys, 0, told.append)
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


def test_a_key_in_use_is_refused_later_than_no_key(
    keys: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.1)
    fleet = Fleet(*[STILL] * 10_000)
    with pytest.raises(RuntimeError, match=r"client 0 is connected already: its key .*0\.key"):
        ask(fleet, keys)
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


@contextlib.contextmanager
def listening(answer: bytes = b"") -> Iterator[int]:
    """Listen on a port; answer the first bytes of every connection and close it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # until the socket is closed
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_node_waits_for_its_server_unhealthy_and_says_each_reason_once(
    keys: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    port, health = free_ports(2)
    fleet, told = Fleet(), list[str]()

    def admitted() -> None:
        with node.waiting(f"127.0.0.1:{health}") as report:

            def both(reason: str) -> None:
                report(reason)
                told.append(reason)

            await_admission(f"127.0.0.1:{port}", keys, 0, both)

    thread = threading.Thread(target=admitted)
    thread.start()
    until("a reason", lambda: bool(told))
    assert checked(health) == told[0] and "no program listens there; start the SuperLink" in told[0]
    with serving(fleet, keys, port):
        thread.join(PATIENCE)
    assert fleet.left == [7] and len({*told}) == len(told)
    assert told[0] in capsys.readouterr().out


def checked(port: int) -> str:
    """Return why the health service at ``port`` is not healthy."""
    connection = grpc.insecure_channel(f"127.0.0.1:{port}")
    with connection, pytest.raises(grpc.RpcError) as error:
        HealthStub(connection).Check(HealthCheckRequest(), timeout=PATIENCE)
    return str(error.value.details())


def test_a_certificate_that_does_not_name_the_host_is_refused(keys: Certificates) -> None:
    with serving(Fleet(), keys, host="0.0.0.0") as address:
        other = address.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(RuntimeError, match=r"does not name 127\.0\.0\.2; make it with") as told:
            await_admission(other, keys, 0, pytest.fail)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "UNKNOWN: CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "it has expired; renew",
        ),
        ("CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "check the clocks of both"),
        (
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
            "of another authority",
        ),
        ("Peer name fed.example is not in peer certificate", "does not name fed.example; make it"),
    ],
)
def test_a_refused_certificate_has_its_own_remedy(text: str, line: str) -> None:
    with pytest.raises(RuntimeError, match=rf"certificate is not accepted: .*{line}"):
        admission.cause("fed.example:9092", text)


def test_a_name_without_an_address_and_a_proxy_are_told(
    keys: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = "errors resolving fed.invalid:9092: [field:hostname lookup error: not found]"
    assert "finds no address of fed.invalid (errors" in admission.cause("fed.invalid:9092", lookup)
    told = list[str]()

    def stop(reason: str) -> None:
        told.append(reason)
        raise InterruptedError

    with listening(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(InterruptedError):
            await_admission("fed.invalid:9092", keys, 0, stop)
    assert f"the proxy http://127.0.0.1:{port} of the variable https_proxy" in told[0]
    assert "no_proxy=fed.invalid avoids it" in told[0]
    monkeypatch.setenv("no_proxy", "example.org")
    assert admission.proxy_of("127.0.0.1") == "" != admission.proxy_of("fed.invalid")
    monkeypatch.setenv("NO_PROXY", ".invalid")  # Flower's processes get both spellings as one
    assert admission.proxy_of("fed.invalid") == admission.proxy_of("example.org") == ""
    assert "proxy" not in admission.cause("fed.x:1", "Connection refused", direct=True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Cannot check peer: missing selected ALPN property.", "the answer is not HTTP/2"),
        ("Failed parsing HTTP/2 (Trying to connect an http1.x server)", "the answer is not HTTP/2"),
        ("Tls handshake failed: OPENSSL_internal:WRONG_VERSION_NUMBER", "the answer is not TLS"),
        ("UNAVAILABLE: ipv4:192.0.2.7:1: Socket closed", "there is no response"),
        ("Handshake read failed (Endpoint closing)", "there is no response"),
    ],
)
def test_what_a_proxy_answers_has_a_meaning(
    text: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", "http://proxy:8")
    told = admission.cause("fed.example:9092", text)
    assert line in told and "the proxy http://proxy:8 of the variable grpc_proxy" in told
    with pytest.raises(RuntimeError, match="of another authority.* the connection uses the proxy"):
        admission.cause("fed.example:9092", "CERTIFICATE_VERIFY_FAILED")


def test_both_spellings_of_direct_hosts_reach_flowers_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("no_proxy", "a.example, localhost")
    monkeypatch.setenv("NO_PROXY", "b.example")
    env = environment({}, tmp_path)
    assert env["no_proxy"] == env["NO_PROXY"] == "a.example,localhost,b.example,127.0.0.1"


def test_a_run_that_stays_pending_says_what_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LONG", 0.0)
    monkeypatch.setattr(control, "SILENCE", 0.0)
    states, told = ["pending"] * 3 + ["finished:completed"], list[str]()
    stub = Mock(_check=lambda: None, address="a:1")
    stub._read = lambda run_id, put, over: over.wait(PATIENCE)
    stub.status = lambda run_id: control.RunStatus(run_id, states.pop(0), "", 0, 0)
    Control.follow(stub, 7, told.append)
    (line,) = told
    assert "run 7 has been pending for 0 s" in line and "no_proxy=127.0.0.1" in line


def test_a_silent_server_uses_no_other_kind_of_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not there, hangs up, or says nothing."""
    (port,) = free_ports(1)
    admission.check_tls(f"127.0.0.1:{port}", True)
    admission.check_tls(f"[::1]:{port}", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        thread = threading.Thread(target=lambda: silent.accept()[0].close())
        thread.start()
        admission.check_tls(address, True)
        thread.join()
        monkeypatch.setattr(admission, "TLS_PATIENCE", 0.1)
        admission.check_tls(address, True)


class Proxy:
    """Proxy of one server for HTTP/1.1; once ``mended``, it passes connections on unchanged.

    ``forward``: whether it waits for CONNECT; otherwise it is in the place of the server.
    """

    def __init__(self, server: str, *, forward: bool) -> None:
        self.server, self.forward = server.rpartition(":"), forward
        self.refused, self.mended, self.port = 0, False, 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        listen = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listen, self._loop).result(PATIENCE)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            if not self.mended:
                await reader.readuntil(b"\r\n\r\n")
                self.refused += 1
                writer.write(b"HTTP/1.1 405 Not Allowed\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
                return
            if self.forward:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            host, _, port = self.server
            with_server = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_pass(reader, with_server[1]), _pass(with_server[0], writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()


@contextlib.contextmanager
def session(
    line: list[str], log: Path, home: Path, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file, and end it with its children."""
    output = {"stdout": log.open("wb"), "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    own = {k: v for k, v in environment(env, home).items() if k.lower() != "no_proxy"}
    with subprocess.Popen(line, env=own, cwd=log.parent, start_new_session=True, **output) as ran:
        try:
            yield ran
        finally:
            end({ran.pid}, 5.0)


@pytest.mark.full
@pytest.mark.parametrize("forward", [True, False], ids=["http_proxy, TLS", "reverse, no TLS"])
def test_a_node_behind_a_proxy_for_http1_is_unhealthy_says_why_once_and_tries_again(
    forward: bool, tmp_path: Path
) -> None:
    host = "fed.example.org"  # only the proxy has its address
    trust = make(tmp_path / "certs", [host], 1) if forward else None
    operator, fleet, health = (f"127.0.0.1:{port}" for port in free_ports(3))
    server = [*control.superlink_command(operator, fleet, False, trust)]
    server[0] = executable(server[0])
    log = tmp_path / "node.log"
    with (
        session(server, tmp_path / "server.log", tmp_path / "server"),
        Control(operator, trust and trust.ca, tmp_path) as api,
        Proxy(fleet, forward=forward) as proxy,
    ):
        api.await_answer(PATIENCE)
        address, env = f"127.0.0.1:{proxy.port}", dict[str, str]()
        security = ["--insecure"]
        if trust is not None:
            api.register(trust.public(0))
            address, env = (
                f"{host}:{fleet.rpartition(':')[2]}",
                {"https_proxy": f"http://{address}"},
            )
            security = ["--ca", str(trust.ca)]
        line = command_line("node", "--superlink", address, *security, "--clients", 1, "--k", 0)
        line += ["--home", str(tmp_path / "node"), "--health", health, "--cold-start"]
        with session(line, log, tmp_path / "node", **env) as client:
            until("three tries", lambda: client.poll() is not None or proxy.refused > 2)
            reason = checked(int(health.rpartition(":")[2]))
            words = log.read_text()
            assert words.count(reason) == 1 and words.count("waiting for the Sup") == 1, words
            if forward:
                assert "it must allow CONNECT" in reason and env["https_proxy"] in reason
                assert f"no_proxy={host} avoids it" in reason and reason.count("http://") == 1
            else:
                assert "is not HTTP/2" in reason and "must pass connections on unch" in reason
            assert api.online() == 0
            proxy.mended = True
            until(log.read_text, lambda: client.poll() is not None or api.online() == 1)
            assert client.poll() is None, log.read_text()
