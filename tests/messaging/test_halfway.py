"""Messages that stop halfway, and the memory that they take."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

from common.flower import rpc
from tests.support.waiting import PATIENCE


def pulled(
    parts: dict[str, int], in_vain: Callable[[], None] = lambda: None, **named: int
) -> dict[str, bytes]:
    """``parts``: by name how often each is asked for in vain before it is there."""
    names, left = list(parts), dict(parts)

    def part(name: str) -> bytes:
        left[name] -= 1
        if left[name] >= 0:
            in_vain()
            raise ObjectUnavailableError(name)
        return name.encode()

    found: dict[str, bytes] = grpc_grid.pull_objects(
        names, part, initial_backoff=0.01, backoff_cap=0.02, **named
    )
    return found


WHOLE = {"a": b"a", "b": b"b"}
NEVER = 10**6


def test_a_reply_that_is_whole_in_time_is_as_flower_pulls_it() -> None:
    with rpc.whole_by(time.monotonic() + PATIENCE):
        assert pulled({"a": 0, "b": 5}) == WHOLE


def test_what_has_not_come_by_the_deadline_is_given_up() -> None:
    begin = time.monotonic()
    with (
        rpc.whole_by(begin + 0.2),
        pytest.raises(ObjectUnavailableError, match="the reply stopped halfway, without b"),
    ):
        pulled({"a": 0, "b": NEVER})
    assert 0.2 <= time.monotonic() - begin < PATIENCE


def test_what_is_there_after_the_deadline_is_taken_all_the_same() -> None:
    with rpc.whole_by(time.monotonic() - 1.0):
        assert pulled({"a": 0, "b": 0}) == WHOLE
        with pytest.raises(ObjectUnavailableError):
            pulled({"a": 0, "b": 1})


def test_a_reply_may_take_long_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def wait() -> None:
        clock.now += rpc.STALLED / 2

    with rpc.whole_by(1e9):
        assert pulled({"a": 2, "b": 2}, wait, max_concurrent_pulls=1) == WHOLE
        assert clock.now == 2 * rpc.STALLED
        with pytest.raises(ObjectUnavailableError):
            pulled({"a": 0, "b": NEVER}, wait)


def test_flower_is_left_as_it_was() -> None:
    before = grpc_grid.pull_objects
    with pytest.raises(ZeroDivisionError), rpc.whole_by(0.0):
        assert grpc_grid.pull_objects is not before
        raise ZeroDivisionError
    assert grpc_grid.pull_objects is before


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1000)
    monkeypatch.setattr(rpc, "AT_ONCE", 2000)
    yield


def test_what_is_sent_is_written_out_a_few_parts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).normal(size=4000)
    record = ArrayRecord({"a": Array(values), "few": Array(values[:3])})
    message = Message(RecordDict({"a": record, "b": ConfigRecord({"n": 1})}), 1, "train")
    objects = get_all_nested_objects(message)
    expected = {name: each.deflate() for name, each in objects.items()}
    chunks = {name for name, each in objects.items() if isinstance(each, ArrayChunk)}
    together, theirs = list[int](), vars(grpc_grid)["push_objects"]

    def counted(some: dict[str, InflatableObject], *given: Any, **named: Any) -> None:
        together.append(len(chunks & some.keys()))
        theirs(some, *given, **named)

    monkeypatch.setattr(grpc_grid, "push_objects", counted)
    known, pushed, left = min(chunks), dict[str, bytes](), dict(objects)
    with rpc.few_at_once():
        grpc_grid.push_objects(
            left, push_object_fn=pushed.__setitem__, object_ids_to_push=set(objects) - {known}
        )
    assert pushed == {name: each for name, each in expected.items() if name != known}
    assert sum(together) == len(chunks) - 1 > 30 and max(together) <= 3 and left == {}


def test_an_error_while_a_part_is_sent_is_raised() -> None:
    message = Message(RecordDict({"b": ConfigRecord({"n": 1})}), 1, "train")

    def push(name: str, content: bytes) -> None:
        raise OSError("the line is cut")

    before = vars(grpc_grid)["push_objects"]
    with pytest.raises(OSError, match="the line is cut"), rpc.few_at_once():
        grpc_grid.push_objects(get_all_nested_objects(message), push_object_fn=push)
    assert vars(grpc_grid)["push_objects"] is before
