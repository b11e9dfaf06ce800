"""How long a SuperNode waits: by the time since its last message, at most as long as Flower's."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from types import SimpleNamespace

import pytest

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


def test_only_the_clock_of_flowers_loop_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = importlib.import_module(supernode.LOOP)
    real, push = loop.time, loop._push_messages
    assert re.findall(r"\btime\.(\w+)", inspect.getsource(loop)) == ["sleep"] * 3
    seen: list[object] = []

    def flowers_own() -> None:
        seen.extend((loop.time, loop._push_messages, sys.modules["time"]))

    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", flowers_own)
    monkeypatch.setattr(loop, "time", real)
    monkeypatch.setattr(loop, "_push_messages", push)
    supernode.main()
    assert isinstance(seen[0], supernode.Clock) and seen[1].__wrapped__ is push
    assert seen[2] is real
