"""How long a SuperNode waits: by the time since its last message, at most as long as Flower's."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.typing import Run, RunNotRunningException
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from deploy.flower import supernode


class Scene(SimpleNamespace):
    """A clock in which time passes in waits alone."""

    def __init__(self) -> None:
        super().__init__(now=100.0, waited=[])
        self.clock = supernode.Clock(self.wait, lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def test_looks_become_rare_without_messages_and_frequent_after_one() -> None:
    scene = Scene()
    while not scene.waited or scene.waited[-1] < 3:
        scene.clock.sleep(3)
    assert scene.waited[:5] == pytest.approx([0.05] * 5) and sorted(scene.waited) == scene.waited
    assert 20 < len(scene.waited) < 40 and scene.now == pytest.approx(115, abs=3)
    scene.clock.sleep(3)
    assert scene.waited[-1] == 3
    scene.clock.during(lambda: None)()  # a message, answered
    scene.clock.sleep(3)
    assert scene.waited[-1] == 0.05


def test_the_wait_for_a_reply_adds_a_twentieth_at_most_and_counts_anew() -> None:
    scene = Scene()
    scene.now += 500

    def answer(message: str, *, times: int) -> None:
        for _ in range(times):
            scene.clock.sleep(0.5)
        raise ConnectionError(message)

    with pytest.raises(ConnectionError, match="gone"):
        scene.clock.during(answer)("gone", times=200)
    assert scene.waited[:19] == pytest.approx([0.05] * 19) and scene.waited[-1] == 0.5
    at = [sum(scene.waited[:i]) for i in range(200)]
    assert all(wait <= max(0.05, t / 20) + 1e-9 for wait, t in zip(scene.waited, at, strict=True))
    scene.clock.sleep(3)
    assert scene.waited[-1] == 0.05


def test_of_flowers_loop_the_clock_is_replaced_and_two_steps_are_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = importlib.import_module(supernode.LOOP)
    real, fetch, push = loop.time, loop._pull_and_store_message, loop._push_messages
    assert re.findall(r"\btime\.(\w+)", inspect.getsource(loop)) == ["sleep"] * 3
    seen: list[object] = []

    def flowers_own() -> None:
        steps = loop._pull_and_store_message, loop._push_messages
        seen.extend((loop.time, sys.modules["time"], *(step.__wrapped__ for step in steps)))

    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", flowers_own)
    monkeypatch.setattr(loop, "time", real)
    monkeypatch.setattr(loop, "_pull_and_store_message", fetch)
    monkeypatch.setattr(loop, "_push_messages", push)
    supernode.main()
    assert isinstance(seen[0], supernode.Clock) and seen[1:] == [real, fetch, push]


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
    assert node.look(supernode.whole(node.fetch), **faults) is None
    assert not node.state.get_messages() and not node.waiting and not len(node.objects)
    assert node.look(supernode.whole(node.fetch)) == 3  # as every other message
    assert node.state.get_messages() == [node.message] and node.waiting == ["flwr-clientapp"]


def test_flowers_own_node_keeps_what_it_gave_up() -> None:
    """Once this fails, Flower has mended it, and ``whole`` is not needed any more."""
    node = Node(run_id=3)
    assert node.look(node.fetch, objects=False) == 3 and not node.state.get_messages()
    assert node.look(node.fetch, confirmed=False) is None
    assert node.state.get_messages() == [node.message] and node.waiting == ["flwr-clientapp"]
