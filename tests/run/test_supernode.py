"""What a SuperNode does in place of Flower's: its waits, its ClientApps, messages given up."""

import importlib
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.typing import Run, RunNotRunningException
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from common.flower import rpc
from deploy.flower import supernode

START = supernode.client_app()
PROGRAM = """
import sys, threading, time
import grpc
from deploy.flower import supernode

class Refused(grpc.RpcError, grpc.Call):
    code = lambda self: grpc.StatusCode.UNAUTHENTICATED
    details = lambda self: "Invalid timestamp"
    initial_metadata = trailing_metadata = is_active = time_remaining = None
    cancel = add_callback = None

def main():
    threading.Thread(target=time.sleep, args=[3600]).start()  # as gRPC's, which do not end
    kind = sys.argv[1]
    if kind == "refused":
        try:
            raise Refused
        except grpc.RpcError:
            raise KeyboardInterrupt from None  # as Flower's, with the error as its context
    if kind != "done":
        sys.exit(int(kind) if kind.isdecimal() else kind)

supernode.main = main
supernode.program()
"""


class Scene(SimpleNamespace):
    """A clock in which time passes in waits alone."""

    def __init__(self) -> None:
        super().__init__(now=100.0, waited=[])

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def until(self, seconds: float) -> Callable[[], bool | None]:
        """A look that is in vain for so long."""
        end = self.now + seconds
        return lambda: self.now >= end or None


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr(supernode, "time", scene)
    return scene


def test_looks_become_rare_and_a_wait_for_a_reply_adds_a_twentieth(scene: Scene) -> None:
    supernode.wait(scene.until(15), supernode.LOOK, supernode.LONGEST_LOOK)
    assert scene.waited[:4] == pytest.approx([0.05] * 4) and sorted(scene.waited) == scene.waited
    assert 20 < len(scene.waited) < 40 and scene.waited[-1] == 3
    scene.waited.clear()
    supernode.wait(scene.until(50), supernode.REPLY, supernode.LONGEST_REPLY)
    assert scene.waited[:19] == pytest.approx([0.05] * 19) and scene.waited[-1] == 0.5
    passed = [0.0, *itertools.accumulate(scene.waited)]
    assert all(w <= max(0.05, t / 20) + 1e-9 for w, t in zip(scene.waited, passed, strict=False))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's loop with what is replaced in it, as long as the test runs."""
    loop = importlib.import_module(supernode.LOOP)
    for name in ("run_clientappio_api_grpc", "_pull_and_store_message", "pull_objects"):
        monkeypatch.setattr(loop, name, getattr(loop, name))
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: None)
    supernode.main()
    return loop


def test_a_missing_part_is_asked_for_again_soon(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    real = Event.wait

    def wait(event: Event, timeout: float | None = None) -> bool:
        if timeout is None:
            return real(event)
        waited.append(timeout)
        return real(event, 0.0)

    monkeypatch.setattr(Event, "wait", wait)
    asked: list[str] = []

    def pull(name: str) -> bytes:
        asked.append(name)
        if len(asked) < 3:
            raise ObjectUnavailableError(name)
        return b"part"

    assert loop.pull_objects(["a"], pull) == {"a": b"part"}
    assert waited == pytest.approx([rpc.AGAIN, 2 * rpc.AGAIN], rel=0.21)  # Flower's jitter: 0.2


class Node:
    """A SuperNode's state, with Flower's own way to take a message from the SuperLink."""

    def __init__(self, run_id: int) -> None:
        stores = ObjectStoreFactory()
        self.objects = stores.store()
        self.state = NodeStateFactory(objectstore_factory=stores).state()
        self.state.set_node_id(7)
        self.state.store_run(Run.create_empty(run_id=run_id))
        self.message = Message(RecordDict({"of": ConfigRecord({"a": 1})}), 7, "train")
        self.message.metadata.__dict__["_run_id"] = run_id
        parts = get_all_nested_objects(self.message)
        self.contents = {name: part.deflate() for name, part in parts.items()}
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        self.fetch = importlib.import_module(supernode.LOOP)._pull_and_store_message

    def look(
        self, fetch: Callable[..., int | None], *, objects: bool = True, confirmed: bool = True
    ) -> int | None:
        """Take the message; its run may end before its objects are fetched, or before the end."""

        def pull(run_id: int, name: str) -> bytes:
            if not objects:
                raise ValueError("gone")
            return self.contents[name]

        def confirm(run_id: int, name: str) -> None:
            if not confirmed:
                raise RunNotRunningException

        return fetch(
            state=self.state,
            object_store=self.objects,
            node_config={},
            receive=lambda: (self.message, get_object_tree(self.message)),
            get_run=None,
            get_fab=None,
            pull_object=pull,
            confirm_message_received=confirm,
            trusted_entities=None,
        )

    def expire(self, task: int) -> None:
        """Let pass the time in which a ClientApp should be heard from."""
        self.state.task_token_store[task].active_until = datetime.now(UTC)

    @property
    def waiting(self) -> list[str]:
        """The tasks that somebody may still begin."""
        return [task.type for task in self.state.get_tasks(statuses=["pending"])]


@pytest.mark.parametrize("faults", [{"objects": False}, {"confirmed": False}])
def test_nothing_is_left_of_a_message_whose_run_has_ended(faults: dict[str, bool]) -> None:
    node = Node(run_id=3)
    assert node.look(partial(supernode.whole, node.fetch), **faults) is None
    assert not node.state.get_messages() and not node.waiting and not len(node.objects)
    assert node.look(partial(supernode.whole, node.fetch)) == 3  # as every other message
    assert node.state.get_messages() == [node.message] and node.waiting == ["flwr-clientapp"]


@pytest.mark.parametrize("lost", [1, supernode.STARTS])
def test_a_message_is_fetched_and_answered_before_flowers_loop_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    node, served = Node(run_id=3), supernode.Node()
    monkeypatch.setattr(subprocess, "Popen", lambda line: begun.append(line) or lasting)
    lasting = SimpleNamespace(poll=lambda: None)
    begun: list[list[str]] = []
    looks = iter([lambda **_: None, lambda **_: None, node.fetch])

    def sleep(seconds: float) -> None:  # some ClientApps are lost in their start, the next ends
        scene.waited.append(seconds)
        for task in node.state.get_tasks(statuses=["starting"]):
            if len(begun) > lost:
                assert node.state.activate_task(task.task_id)
                node.state.finish_task(task.task_id, "completed", "")
            else:
                node.expire(task.task_id)

    scene.sleep = sleep
    server = served.listening(lambda **_: SimpleNamespace(bound_address="127.0.0.1:5"))()
    assert server.bound_address == "127.0.0.1:5"
    assert node.look(served.serving(lambda **named: next(looks)(**named))) == 3
    assert scene.waited == [0.05] * (2 + min(lost + 1, supernode.STARTS))
    program = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    for line in begun:
        args = program._parse_args_run_flwr_clientapp().parse_args(line[len(START) :])
        assert (args.clientappio_api_address, args.insecure) == ("127.0.0.1:5", True)
        assert args.parent_pid == os.getpid() and args.token
    assert [line[: len(START)] for line in begun] == [START] * min(lost + 1, supernode.STARTS)
    (reply,) = node.state.get_messages(is_reply=True)
    in_vain = f"{lost} ClientApps ended before they reported their start"
    assert reply.error.reason == (in_vain if lost == supernode.STARTS else supernode.GONE)


@pytest.mark.parametrize(
    ("taken", "confirmed", "sent", "ended"),
    [
        pytest.param(False, False, 0, False, id="killed before it took the message"),
        pytest.param(True, False, 0, False, id="killed before it had all parts of the message"),
        pytest.param(True, True, 0, False, id="killed at work"),
        pytest.param(True, True, 1, False, id="killed while it sent its reply"),
        pytest.param(True, True, 9, False, id="killed after it had sent its reply"),
        pytest.param(True, True, 9, True, id="completed"),
    ],
)
def test_a_message_has_one_complete_reply_however_its_clientapp_ends(
    taken: bool, confirmed: bool, sent: int, ended: bool
) -> None:
    node = Node(run_id=3)
    assert node.look(node.fetch) == 3
    (task,) = node.state.get_tasks(statuses=["pending"])
    assert node.state.claim_task(task.task_id) and node.state.activate_task(task.task_id)
    if taken:
        assert node.state.get_messages(is_reply=False) == [node.message]
        node.state.record_message_processing_start(node.message.metadata.message_id)
    if confirmed:
        node.objects.delete(node.message.metadata.message_id)
    reply = Message(RecordDict({"of": ConfigRecord({"b": 2})}), reply_to=node.message)
    if sent:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        node.objects.preregister(3, get_object_tree(reply))
        node.state.record_message_processing_end(node.message.metadata.message_id)
        node.state.store_message(reply)
    for name, part in list(get_all_nested_objects(reply).items())[:sent]:
        node.objects.put(name, part.deflate())
    if ended:
        assert node.state.finish_task(task.task_id, "completed", "")
    else:
        node.expire(task.task_id)
    assert not node.state.get_tasks(statuses=supernode.AT_WORK)
    supernode.ensure_reply(3, node.state, node.objects)
    (answer,) = node.state.get_messages(is_reply=True)
    assert answer.metadata.reply_to_message_id == node.message.metadata.message_id
    assert answer.has_error() is not (sent == 9)
    assert answer == reply or answer.error.reason == "ClientApp stopped responding."
    parts = get_all_nested_objects(answer)
    assert all(node.objects.get(name) for name in parts) and len(node.objects) == len(parts)
    assert node.state.get_message_processing_duration(node.message.metadata.message_id) >= 0


def test_lines_of_messages_are_left_out_not_those_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "handlers", [Lines()])
    monkeypatch.setenv(supernode.LEVEL, "INFO")
    flower.info("SuperNode ID: 7")
    supernode.leave_out_messages()
    node, served = Node(run_id=3), supernode.Node()
    monkeypatch.setattr(served, "_ended", lambda *_: True)
    fetch = served.serving(node.fetch)
    assert node.look(fetch) == node.look(fetch) == 3
    flower.warning("the SuperLink is lost")
    first = "run 3: the first message has arrived"
    assert kept == ["SuperNode ID: 7", first, "the SuperLink is lost"]
    assert os.environ[supernode.LEVEL] == "WARNING", "its ClientApps log from there on"


@pytest.mark.parametrize(
    ("kind", "status", "line"),
    [
        ("refused", 1, "error: the SuperLink refuses this client: Invalid timestamp\n"),
        ("done", 0, ""),
        ("0", 0, ""),
        ("3", 3, ""),
        ("words", 1, "words\n"),
    ],
)
def test_the_program_ends_though_threads_go_on(kind: str, status: int, line: str) -> None:
    command = [sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, line)
