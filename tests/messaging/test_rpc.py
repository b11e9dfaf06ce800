"""Messages that stop halfway, and the memory and the files that large parts take."""

import errno
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    add_header_to_object_body,
    get_all_nested_objects,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

from common.flower import rpc
from common.flower.rpc import ChunkFile
from server_app.messaging import reply_files
from tests.support.waiting import PATIENCE

WHOLE = {"a": b"a", "b": b"b"}
NEVER = 10**6
MOST = 10**6


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1000)
    monkeypatch.setattr(rpc, "AT_ONCE", 2000)
    monkeypatch.setattr(rpc, "LARGE", 400)


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

    pauses = {"initial_backoff": 0.01, "backoff_cap": 0.02}
    found: dict[str, bytes] = grpc_grid.pull_objects(names, part, **pauses, **named)
    return found


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
        wanted, push = set(objects) - {known}, pushed.__setitem__
        grpc_grid.push_objects(left, push_object_fn=push, object_ids_to_push=wanted)
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


def reply(**arrays: np.ndarray) -> Message:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    content = RecordDict({"arrays": record, "fields": ConfigRecord({"kind": "a"})})
    return Message(content, 1, "train")


def pulled_message(message: Message, folder: Path, most: int = MOST) -> Message:
    """As Flower's grid pulls and puts together, with parts in any order."""
    parts = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    return put_together(message.object_id, parts, folder, most)


def put_together(name: str, parts: dict[str, bytes], folder: Path, most: int = MOST) -> Message:
    with rpc.whole_by(time.monotonic() + 100, lambda: ChunkFile(folder, most)):
        found = grpc_grid.pull_objects(object_ids=list(parts), pull_object_fn=parts.__getitem__)
        made = grpc_grid.inflate_object_from_contents(name, found)
    assert isinstance(made, Message)
    return made


def test_what_is_pulled_into_a_file_is_what_was_sent(tmp_path: Path) -> None:
    sent = reply(
        large=np.random.default_rng(1).normal(size=(700, 3)),
        zeros=np.zeros(5000),  # of equal chunks
        small=np.arange(3),
        none=np.empty((0, 2)),
    )
    got = pulled_message(sent, tmp_path)
    arrays, told = got.content["arrays"], got.content["fields"]
    assert isinstance(arrays, ArrayRecord) and told == sent.content["fields"]
    kept = {name: isinstance(array.data, memoryview) for name, array in arrays.items()}
    assert kept == {"large": True, "zeros": True, "small": False, "none": False}
    for name, array in sent.content.array_records["arrays"].items():
        assert bytes(arrays[name].data) == array.data, name
        assert (arrays[name].shape, arrays[name].dtype) == (array.shape, array.dtype)
    arrays["large"].numpy()
    before = arrays["large"].data
    reply_files.move_to_file(got.content, tmp_path)
    assert arrays["large"].data is before, "what is in a file stays there"
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_large_for_the_disk_stays_in_memory_until_it_is_refused(tmp_path: Path) -> None:
    sent = reply(large=np.arange(1000.0), other=np.arange(500.0))
    for most in (0, 2500, 9000):
        got = pulled_message(sent, tmp_path, most).content.array_records["arrays"]
        assert all(bytes(got[name].data) == a.data for name, a in sent.content["arrays"].items())


def test_a_small_reply_that_stands_for_a_large_one_is_refused(tmp_path: Path) -> None:
    sent = reply(zeros=np.zeros(5000))
    nested = get_all_nested_objects(sent)
    (array,) = (each for each in nested.values() if isinstance(each, Array))
    about = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
    for chunks in (10**5 * [0], [0, 7], [-3]):
        body = json.dumps(about | {"arraychunk_ids": chunks}).encode()
        forged = add_header_to_object_body(body, array)
        parts = {name: each.deflate() for name, each in nested.items()} | {array.object_id: forged}
        with pytest.raises((ValueError, IndexError)):
            put_together(sent.object_id, parts, tmp_path)
    with pytest.raises(ValueError, match="it expands to 40 MB, limit 1 MB"):
        body = json.dumps(about | {"arraychunk_ids": 40000 * [0]}).encode()
        parts[array.object_id] = add_header_to_object_body(body, array)
        put_together(sent.object_id, parts, tmp_path)


def test_repeated_chunks_may_have_the_limits_size_and_no_byte_more(tmp_path: Path) -> None:
    zeros = np.zeros(1234)  # 10,000 bytes with numpy's header, in chunks of 1000
    sent, size = reply(zeros=zeros), 10_000
    received = pulled_message(sent, tmp_path, size).content.array_records["arrays"]["zeros"]
    assert len(received.data) == size and np.array_equal(received.numpy(), zeros)
    with pytest.raises(ValueError, match="it expands to"):
        pulled_message(sent, tmp_path, size - 1)


def test_a_full_disk_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left on device, for a client's reply") as raised:
        pulled_message(reply(large=np.zeros(500)), tmp_path)
    assert raised.value.filename == str(tmp_path)
