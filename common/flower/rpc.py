"""Calls over gRPC: error texts, incomplete replies, large messages.

A reply is incomplete if its client died during the upload, or withholds a part. Flower returns a
reply as soon as its description exists, and then polls for every part for up to 83 minutes. It
ignores the run's timeout, and all other replies wait meanwhile. The grid has no option for this, so
``whole_by`` replaces Flower's pull function during an exchange. It also replaces the function that
assembles the parts, so that large parts can go to a file (``ChunkFile``).

Flower serializes an outgoing message completely before it sends the first part, which doubles the
memory. ``few_at_once`` passes it a few parts at a time.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO, final

import grpc
from flwr.app import Array, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import grpc_grid

from common.errors import first_line
from common.files import parse_json, written_in

STALLED = 300.0  #: longest pause between two parts in seconds; a part has at most 20 MB
AGAIN = 0.05
"""Seconds until the first retry for a missing part, doubled each time; Flower's value is 1."""
AT_ONCE = 1 << 24  #: approximate bytes of the parts that are serialized together
HALFWAY = "the reply stopped halfway"
NAME = 64  #: characters of a part's name
LARGE = 1 << 20  #: smallest chunk in bytes that goes to the file


def details(error: grpc.RpcError) -> str:
    """Return the error text of the other side, in one line."""
    text = error.details() if isinstance(error, grpc.Call) else error  # type: ignore[no-untyped-call]
    return first_line(str(text))


def over_grpc(grid: Grid) -> bool:
    """Return whether ``grid`` sends messages to other processes over gRPC."""
    return isinstance(grid, grpc_grid.GrpcGrid)


@final
class ChunkFile:
    """Unnamed file with the large chunks of one reply; chunks beyond ``most`` bytes stay in memory.

    Flower pulls the parts of a reply (chunks of an array, at most 20 MB each), joins them and
    copies the result, so that a reply is in memory three times. This class writes each chunk to a
    file on arrival. An array whose chunks are all in the file becomes a memory map of a second file
    with the chunks in order.

    Several threads call ``take`` at the same time; ``objects`` is called once, at the end. A failed
    write raises ``OSError`` that names ``folder``.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._file: BinaryIO | None = None
        self._size = 0
        self._places: dict[str, tuple[int, int]] = {}
        self._arrays: dict[bytes, memoryview] = {}  # placeholder to array data
        self._lock = threading.Lock()

    def take(self, name: str, content: bytes) -> bytes:
        """Return part ``name`` of the reply unchanged, or ``b""`` if it was written to the file."""
        if len(content) < LARGE:
            return content
        kind, _, size = get_object_head_values_from_object_content(content)
        if kind != ArrayChunk.__qualname__ or not 0 < size < len(content):
            return content
        with self._lock, written_in(self._folder, "a client's reply"):
            if self._size + size > self._most:
                return content
            if self._file is None:
                # it is closed with the reply
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._file.write(memoryview(content)[-size:])
            self._places[name] = self._size, size
            self._size += size
        return b""

    def objects(self, contents: dict[str, bytes]) -> dict[str, InflatableObject]:
        """Return the reply's chunks in this file, and its arrays made of such chunks, by name.

        ``contents``: the reply's parts as returned by ``take``. Raises ``ValueError`` for an array
        larger than the limit.
        """
        objects: dict[str, InflatableObject] = {}
        if self._file is not None:
            with written_in(self._folder, "a client's reply"):
                self._file.flush()
            data = memoryview(mmap(self._file.fileno(), 0, access=ACCESS_COPY))
            for name, (begin, size) in self._places.items():
                objects[name] = ArrayChunk(data[begin : begin + size])
        for name in contents:
            if name not in objects and (array := self._array(name, contents)) is not None:
                objects[name] = array
        return objects

    def _array(self, name: str, contents: dict[str, bytes]) -> Array | None:
        content = contents[name]
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            return None
        about = parse_json(get_object_body(content, Array))
        chunks = [children[i] for i in about["arraychunk_ids"]]
        if len(chunks) > len(set(chunks)):
            self._check(chunks, contents)
        if set(children).isdisjoint(self._places) or set(chunks) != set(children):
            return None  # Flower joins the chunks or raises an error
        if any(chunk not in self._places and len(contents[chunk]) >= LARGE for chunk in children):
            return None  # some chunks exceeded the limit of the file
        self._arrays[name.encode()] = self._joined(chunks, contents)
        return Array(about["dtype"], tuple(about["shape"]), about["stype"], name.encode())

    def settle(self, content: RecordDict) -> None:
        """Replace the placeholders that ``objects`` put into arrays by the array data, in place.

        Placeholders are needed because Flower copies an array when it assembles a record, and
        accepts only bytes.
        """
        for record in content.array_records.values():
            for array in record.values():
                if len(array.data) == NAME and (data := self._arrays.get(array.data)) is not None:
                    array.data = data  # type: ignore[assignment]  # readers accept any buffer

    def _check(self, chunks: list[str], contents: dict[str, bytes]) -> None:
        """Raise ``ValueError`` for an array that exceeds the limit because it repeats chunks."""
        sizes = {name: size for name, (_, size) in self._places.items()}
        size = sum(sizes.get(name) or len(contents[name]) for name in chunks)
        if size > self._most:
            raise ValueError(f"it expands to {size / 1e6:.3g} MB, limit {self._most / 1e6:.3g} MB")

    def _joined(self, chunks: list[str], contents: dict[str, bytes]) -> memoryview:
        """Map a new file with ``chunks`` in order; the small ones are read from ``contents``."""
        assert self._file is not None, "no chunks in the file"
        with (
            written_in(self._folder, "a client's reply"),
            tempfile.TemporaryFile(dir=self._folder) as file,
        ):
            for chunk in chunks:
                if chunk in self._places:
                    begin, size = self._places[chunk]
                    self._file.seek(begin)
                    file.write(self._file.read(size))
                else:
                    file.write(get_object_body(contents[chunk], ArrayChunk))
            file.flush()
            return memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))


class _Halfway(Exception):
    """Incomplete reply; Flower does not retry on this type."""


@final
class _Pulled(dict[str, bytes]):
    """Parts of one reply; the large ones are in ``chunk_file``."""

    chunk_file: ChunkFile


@contextmanager
def whole_by(deadline: float, spool: Callable[[], ChunkFile] | None = None) -> Iterator[None]:
    """Turn replies that are incomplete at ``deadline`` (``time.monotonic()``) into error replies.

    A reply without a further part for ``STALLED`` seconds becomes an error reply too.
    ``spool`` creates the file for the large parts of one reply; without it they stay in memory.
    """
    module = vars(grpc_grid)  # the grid looks these functions up in its module's namespace
    pull: Callable[..., dict[str, bytes]] = module["pull_objects"]
    inflate: Callable[..., InflatableObject] = module["inflate_object_from_contents"]

    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: object
    ) -> dict[str, bytes]:
        last = time.monotonic()
        chunk_file = spool() if spool else None

        def pull_one(name: str) -> bytes:
            nonlocal last
            try:
                content = pull_object_fn(name)
            except ObjectUnavailableError:
                if time.monotonic() > min(deadline, last + STALLED):
                    raise _Halfway(name) from None
                raise
            last = time.monotonic()
            return chunk_file.take(name, content) if chunk_file else content

        try:
            pulled = pull(object_ids, pull_one, **{"initial_backoff": AGAIN, **named})
        except _Halfway as missing:
            error = ObjectUnavailableError(str(missing))
            error.args = (f"{HALFWAY}, without {str(missing)[:12]}",)
            raise error from None
        if chunk_file:
            pulled = _Pulled(pulled)
            pulled.chunk_file = chunk_file
        return pulled

    def assemble(name: str, pulled: dict[str, bytes]) -> InflatableObject:
        if not isinstance(pulled, _Pulled):
            return inflate(name, pulled)
        message = inflate(name, pulled, objects=pulled.chunk_file.objects(pulled))
        if isinstance(message, Message) and message.has_content():
            pulled.chunk_file.settle(message.content)
        return message

    module |= {"pull_objects": pull_objects, "inflate_object_from_contents": assemble}
    try:
        yield
    finally:
        module |= {"pull_objects": pull, "inflate_object_from_contents": inflate}


@contextmanager
def few_at_once() -> Iterator[None]:
    """Serialize messages that are sent in this context a few parts at a time."""
    module = vars(grpc_grid)
    push: Callable[..., None] = module["push_objects"]

    def push_objects(
        objects: dict[str, InflatableObject],
        push_object_fn: Callable[[str, bytes], None],
        *,
        object_ids_to_push: Container[str] | None = None,
        **named: object,
    ) -> None:
        batch: dict[str, InflatableObject] = {}
        size = 0
        for name in list(objects):
            item = objects.pop(name)
            if object_ids_to_push is not None and name not in object_ids_to_push:
                continue
            batch[name] = item
            size += len(item.data) if isinstance(item, ArrayChunk) else 0
            if size >= AT_ONCE:
                push(batch, push_object_fn, **named)
                batch, size = {}, 0
        push(batch, push_object_fn, **named)

    module["push_objects"] = push_objects
    try:
        yield
    finally:
        module["push_objects"] = push
