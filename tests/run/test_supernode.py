"""How long a SuperNode waits: by the time since its last message, at most as long as Flower's."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from functools import partial
from threading import Event
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.typing import Run, RunNotRunningException
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from common.flower import rpc
from deploy.flower import supernode


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


def test_looks_become_rare_without_messages(scene: Scene) -> None:
    supernode.wait(scene.until(15), supernode.LOOK, supernode.LONGEST_LOOK)
    assert scene.waited[:4] == pytest.approx([0.05] * 4) and sorted(scene.waited) == scene.waited
    assert 20 < len(scene.waited) < 40 and scene.waited[-1] == 3


def test_the_wait_for_a_reply_adds_a_twentieth_at_most(scene: Scene) -> None:
    supernode.wait(scene.until(50), supernode.REPLY, supernode.LONGEST_REPLY)
    assert scene.waited[:19] == pytest.approx([0.05] * 19) and scene.waited[-1] == 0.5
    passed = [0.0, *itertools.accumulate(scene.waited)]
    assert all(w <= max(0.05, t / 20) + 1e-9 for w, t in zip(scene.waited, passed, strict=False))


def test_of_flowers_loop_the_fetch_and_the_pull_of_parts_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = importlib.import_module(supernode.LOOP)
    fetch, pull = loop._pull_and_store_message, loop.pull_objects
    monkeypatch.setattr(loop, "_pull_and_store_message", fetch)
    monkeypatch.setattr(loop, "pull_objects", pull)
    seen: list[object] = []

    def flowers_own() -> None:
        seen.extend((loop._pull_and_store_message.__wrapped__, loop.pull_objects.func))

    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", flowers_own)
    supernode.main()
    assert seen == [fetch, pull]


def test_a_missing_part_is_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the server asks for one, not after Flower's second."""
    loop = importlib.import_module(supernode.LOOP)
    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)
    monkeypatch.setattr(loop, "pull_objects", loop.pull_objects)
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: None)
    supernode.main()
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
        self.contents = {
            name: each.deflate() for name, each in get_all_nested_objects(self.message).items()
        }
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

    @property
    def waiting(self) -> list[str]:
        """The tasks that somebody may still begin."""
        return [task.type for task in self.state.get_tasks(statuses=["pending"])]


@pytest.mark.parametrize("faults", [{"objects": False}, {"confirmed": False}])
def test_nothing_is_left_of_a_message_whose_run_ended_while_it_was_fetched(
    faults: dict[str, bool],
) -> None:
    node = Node(run_id=3)
    assert node.look(partial(supernode.whole, node.fetch), **faults) is None
    assert not node.state.get_messages() and not node.waiting and not len(node.objects)
    assert node.look(partial(supernode.whole, node.fetch)) == 3  # as every other message
    assert node.state.get_messages() == [node.message] and node.waiting == ["flwr-clientapp"]


def test_flowers_own_node_keeps_what_it_gave_up() -> None:
    """Once this fails, Flower has mended it, and ``whole`` is not needed any more."""
    node = Node(run_id=3)
    assert node.look(node.fetch, objects=False) == 3 and not node.state.get_messages()
    assert node.look(node.fetch, confirmed=False) is None
    assert node.state.get_messages() == [node.message] and node.waiting == ["flwr-clientapp"]


def test_a_message_is_fetched_and_its_reply_awaited_before_flowers_loop_goes_on(
    scene: Scene,
) -> None:
    node = Node(run_id=3)
    looks = iter([lambda **_: None, lambda **_: None, node.fetch])
    left = [3]

    def sleep(seconds: float) -> None:  # the ClientApp ends after three looks
        for task in node.state.get_tasks(statuses=supernode.AT_WORK):
            left[0] -= 1
            if not left[0]:
                node.state.claim_task(task.task_id)
                node.state.activate_task(task.task_id)
                node.state.finish_task(task.task_id, "completed", "")
        scene.waited.append(seconds)

    scene.sleep = sleep
    assert node.look(supernode.served(lambda **named: next(looks)(**named))) == 3
    assert scene.waited == [0.05] * 5
