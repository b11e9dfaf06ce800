"""Work that is handed to the warm process: what it takes over, once or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.proto.appio_pb2 import ClaimTaskResponse, PullPendingTasksResponse
from flwr.proto.clientappio_pb2_grpc import (
    ClientAppIoServicer,
    add_ClientAppIoServicer_to_server,
)
from flwr.proto.task_pb2 import Task

from deploy.flower import dispatch, warm, warm_client
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="passes files over a socket")

Answer = Callable[[socket.socket], None]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 characters
    return "s"


@contextlib.contextmanager
def warm_process(address: str, answer: Answer) -> Iterator[None]:
    """Something that accepts one request at ``address`` and answers as it likes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(1)

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        thread.join()


def request(connection: socket.socket) -> dict[str, object]:
    """The request, with its files closed again."""
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    for output in outputs:
        os.close(output)
    text = b""
    while not text.endswith(b"\n"):
        text += connection.recv(65536)
    found: dict[str, object] = json.loads(text)
    return found


def test_what_is_handed_over_is_the_command_its_environment_and_its_folder(address: str) -> None:
    seen: list[object] = []

    def answer(connection: socket.socket) -> None:
        seen.append(request(connection))
        connection.sendall(warm_client.READY)
        seen.append(connection.recv(1))
        connection.sendall(warm_client.FORKED)

    with warm_process(address, answer):
        assert warm_client.hand_over(address, "flwr-clientapp", ["--token", "x"])
    wanted = {"argv": ["flwr-clientapp", "--token", "x"], "env": dict(os.environ)}
    assert seen == [{**wanted, "cwd": os.getcwd()}, warm_client.AGREED]


def test_a_warm_process_that_hangs_up_leaves_the_work_here(address: str) -> None:
    def before(connection: socket.socket) -> None:
        request(connection)

    def after(connection: socket.socket) -> None:
        request(connection)
        connection.sendall(warm_client.READY)
        connection.recv(1)

    for answer in (before, after):
        with warm_process(address, answer):
            assert not warm_client.hand_over(address, "flwr-clientapp", [])
        Path(address).unlink()
    assert not warm_client.hand_over(address, "flwr-clientapp", []), "nobody listens"


def test_who_waits_in_vain_has_not_agreed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_client, "PATIENCE", 0.2)
    late: list[bytes] = []
    gone = threading.Event()

    def answer(connection: socket.socket) -> None:
        request(connection)
        gone.wait(PATIENCE)
        with contextlib.suppress(OSError):
            connection.sendall(warm_client.READY)
        late.append(connection.recv(1))

    with warm_process(address, answer):
        assert not warm_client.hand_over(address, "flwr-clientapp", [])
        gone.set()
    assert late == [b""]


@pytest.mark.parametrize("words", [b"", b"\n", b'{"argv"', b'{"argv": []}\n', b"{}\n?"])
def test_the_warm_process_forks_only_for_who_has_agreed(
    words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or 1)
    opened = len(os.listdir("/proc/self/fd"))
    here, there = socket.socketpair()
    with there, socket.socket(socket.AF_UNIX) as listener:
        with here:
            socket.send_fds(here, [b"."], [1, 2])
            here.sendall(words)
        with contextlib.suppress(OSError, ValueError):
            warm._take_over(there, listener, {})
    assert forked == []
    assert len(os.listdir("/proc/self/fd")) == opened, "the files that were passed stay open"


def test_the_warm_process_forks_once_for_who_has_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[int] = []
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or 1)
    here, there = socket.socketpair()
    with here, there, socket.socket(socket.AF_UNIX) as listener:
        socket.send_fds(here, [b"."], [1, 2])
        here.sendall(b'{"argv": []}\n')
        thread = threading.Thread(target=warm._take_over, args=(there, listener, {}))
        thread.start()
        assert here.recv(1) == warm_client.READY
        assert forked == []
        here.sendall(warm_client.AGREED)
        assert here.recv(1) == warm_client.FORKED
        thread.join()
    assert forked == [1]


GIVEN = ["--insecure", "--appio-api-address", "127.0.0.1:5", "--plugin-type", "clientapp"]


def test_what_a_supernode_asks_for_is_served() -> None:
    asked = dispatch.service([*GIVEN, "--parent-pid", "77"])
    assert asked == dispatch.Service("127.0.0.1:5", 77)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        GIVEN,
        [*GIVEN, "--parent-pid"],
        [*GIVEN, "--parent-pid", "me"],
        [*GIVEN, "--parent-pid", "77", "--allow-runtime-dependency-installation"],
        [*GIVEN, "--parent-pid", "77", "--executor", "kubernetes"],
        [*GIVEN[:-1], "serverapp", "--parent-pid", "77"],
        ["--root-certificates", "ca.crt", *GIVEN[1:], "--parent-pid", "77"],
    ],
)
def test_anything_else_is_left_to_flower(arguments: list[str]) -> None:
    assert dispatch.service(arguments) is None


def test_a_loop_that_cannot_serve_runs_flowers_own_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def fails(*_: Any) -> None:
        raise AttributeError("the interface has changed")

    monkeypatch.setattr(dispatch, "dispatch", fails)
    for arguments in ([*GIVEN, "--parent-pid", "77"], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["flower-superexec", *arguments])
        warm._superexec("no socket", lambda: ran.append(sys.argv[1:]))
    assert ran == [[*GIVEN, "--parent-pid", "77"], ["--help"]]
    assert "the interface has changed" in capsys.readouterr().err


def test_the_loop_looks_often_after_a_task_and_seldom_after_long_idleness() -> None:
    assert dispatch.pause(0.0) == 0.05
    assert dispatch.pause(6.0) == pytest.approx(0.15)
    assert dispatch.pause(1000.0) == 0.5


class Node(ClientAppIoServicer):  # type: ignore[misc]
    """A SuperNode with the given tasks, of which number 2 has been claimed by somebody else."""

    def __init__(self, kinds: list[str]) -> None:
        self.pending = [Task(task_id=i, type=kind) for i, kind in enumerate(kinds, start=1)]

    def PullPendingTasks(self, request: Any, context: Any) -> PullPendingTasksResponse:  # noqa: N802
        return PullPendingTasksResponse(tasks=self.pending)

    def ClaimTask(self, request: Any, context: Any) -> ClaimTaskResponse:  # noqa: N802
        self.pending = [task for task in self.pending if task.task_id != request.task_id]
        if request.task_id == 2:
            return ClaimTaskResponse()
        return ClaimTaskResponse(token=f"token-{request.task_id}")


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "3600"])
    yield process
    process.kill()
    process.wait()


def served(node: Node) -> tuple[grpc.Server, str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_ClientAppIoServicer_to_server(node, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def test_every_task_is_claimed_and_launched_as_flower_would(
    parent: subprocess.Popen[bytes],
) -> None:
    launched: list[list[str]] = []
    server, address = served(Node([dispatch.CLIENT_APP] * 3))

    def launch(arguments: list[str]) -> None:
        launched.append(arguments)
        if len(launched) == 2:
            parent.kill()  # and not waited for: a zombie has ended too

    dispatch.dispatch(dispatch.Service(address, parent.pid), launch)
    server.stop(None)
    parts = ["--clientappio-api-address", address, "--token", "token-1", "--insecure"]
    assert launched[0] == [*parts, "--parent-pid", str(os.getpid())]
    assert [arguments[3] for arguments in launched] == ["token-1", "token-3"]


def test_a_task_of_another_kind_is_left_to_flower(parent: subprocess.Popen[bytes]) -> None:
    server, address = served(Node(["flwr-simulation"]))
    with pytest.raises(RuntimeError, match="a task of type 'flwr-simulation'"):
        dispatch.dispatch(dispatch.Service(address, parent.pid), lambda _: None)
    server.stop(None)


def test_the_loop_waits_for_a_supernode_that_does_not_answer_yet(
    parent: subprocess.Popen[bytes],
) -> None:
    parent.terminate()
    dispatch.dispatch(dispatch.Service("127.0.0.1:1", parent.pid), lambda _: None)


def test_a_client_is_started_by_name_where_nothing_is_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / dispatch.CLIENT_APP
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    dispatch.start(str(tmp_path / "no-socket"), ["--token", "x"])
    said = tmp_path / "said"
    assert until("its start", lambda: said.exists() and said.read_text()) == "--token x\n"
