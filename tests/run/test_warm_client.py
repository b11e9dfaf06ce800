"""Work is handed to the warm process once or not at all, whoever is slow or gone."""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.flower import warm, warm_client
from tests.support.waiting import PATIENCE

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


@pytest.mark.parametrize("words", [b"", b"\n", b'{"argv"', b'{"argv": []}\n', b"{}\n?", None])
def test_the_warm_process_forks_once_and_only_for_who_has_agreed(
    words: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or 1)
    opened = len(os.listdir("/proc/self/fd"))
    here, there = socket.socketpair()
    with there, socket.socket(socket.AF_UNIX) as listener:

        def take_over() -> None:
            with contextlib.suppress(OSError, ValueError):
                warm._take_over(there, listener, {})

        with here:
            socket.send_fds(here, [b"."], [1, 2])
            here.sendall(b'{"argv": []}\n' if words is None else words)
            if words is None:
                thread = threading.Thread(target=take_over)
                thread.start()
                assert here.recv(1) == warm_client.READY and forked == []
                here.sendall(warm_client.AGREED)
                assert here.recv(1) == warm_client.FORKED
                thread.join()
        if words is not None:
            take_over()
    assert forked == [1] * (words is None)
    assert len(os.listdir("/proc/self/fd")) == opened, "the files that were passed stay open"
