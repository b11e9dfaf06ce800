"""Large parts of a reply lie in a file while they are pulled; what arrives is the same."""

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
)
from flwr.superlink.grid import grpc_grid

from common.flower import rpc
from common.flower.rpc import ChunkFile
from server_app.messaging import reply_files

MOST = 10**6


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rpc, "LARGE", 400)
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1000)
    yield


def reply(**arrays: np.ndarray) -> Message:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    content = RecordDict({"arrays": record, "fields": ConfigRecord({"kind": "a"})})
    return Message(content, 1, "train")


def pulled(message: Message, folder: Path, most: int = MOST) -> Message:
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
    got = pulled(sent, tmp_path)
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
        got = pulled(sent, tmp_path, most).content.array_records["arrays"]
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


def test_a_reply_with_repeated_chunks_may_have_the_limits_size_and_no_byte_more(
    tmp_path: Path,
) -> None:
    zeros = np.zeros(1234)  # 10,000 bytes with numpy's header, in chunks of 1000
    sent, size = reply(zeros=zeros), 10_000
    received = pulled(sent, tmp_path, size).content.array_records["arrays"]["zeros"]
    assert len(received.data) == size and np.array_equal(received.numpy(), zeros)
    with pytest.raises(ValueError, match="it expands to"):
        pulled(sent, tmp_path, size - 1)


def test_a_full_disk_is_told_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left on device, for a client's reply") as raised:
        pulled(reply(large=np.zeros(500)), tmp_path)
    assert raised.value.filename == str(tmp_path)
