"""Calls over gRPC: what one that failed says of itself, replies that stop halfway, large messages.

A reply stops halfway where its client died while it sent it, or keeps a part back. Flower hands a
reply out when its description is there and asks for each of its parts again and again, for up to 83
minutes whatever the run's timeout, and every other reply waits behind it. The grid has no knob for
this, so the function that it pulls with is replaced while an exchange goes on, and with it the
one that puts the parts together, where large parts are to go to a file (``ChunkFile``).

What is sent Flower writes out as a whole before it sends the first part, so that it is in memory
twice. ``few_at_once`` hands it a few parts after the other.
"""

import json
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
from common.files import written_in

STALLED = 300.0  #: seconds without a further part; a part has at most 20 MB
AGAIN = 0.05
"""Seconds until a missing part is asked for again, twice as long each time; Flower's is 1."""
AT_ONCE = 1 << 24  #: bytes, about, of the parts that are written out together
HALFWAY = "the reply stopped halfway"
NAME = 64  #: characters of a part's name
LARGE = 1 << 20  #: bytes of a chunk that goes to the file


def details(error: grpc.RpcError) -> str:
    """What the other side said, in one line."""
    text = error.details() if isinstance(error, grpc.Call) else error  # type: ignore[no-untyped-call]
    return first_line(str(text))


def over_grpc(grid: Grid) -> bool:
    """Whether messages go to other processes, of whatever machine, by this module's calls."""
    return isinstance(grid, grpc_grid.GrpcGrid)


@final
class ChunkFile:
    """The large chunks of one reply, of ``most`` bytes together: what is more stays in memory.

    Flower pulls the parts of a reply (chunks of at most 20 MB of an array), joins them and copies
    what it has joined, so a reply lies in memory three times. Here a chunk is written to a file
    without a name as soon as it is there, and an array whose chunks are all in files is a mapping
    of a file in which they stand in their order.

    ``take`` is called by several threads at once, ``objects`` once, at the end. What cannot be
    written raises ``OSError`` that names ``folder``.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._file: BinaryIO | None = None
        self._size = 0
        self._places: dict[str, tuple[int, int]] = {}
        self._arrays: dict[bytes, memoryview] = {}  # what stands for them, and what they hold
        self._lock = threading.Lock()

    def take(self, name: str, content: bytes) -> bytes:
        """Keep the part ``name`` of the reply; the same part, or nothing if it is kept here."""
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
        """What of the reply is made of parts that are kept here: whole arrays where all are.

        ``contents``: the reply's parts as ``take`` left them. Raises ``ValueError`` for an array
        that is more than may be.
        """
        found: dict[str, InflatableObject] = {}
        if self._file is not None:
            with written_in(self._folder, "a client's reply"):
                self._file.flush()
            kept = memoryview(mmap(self._file.fileno(), 0, access=ACCESS_COPY))
            for name, (begin, size) in self._places.items():
                found[name] = ArrayChunk(kept[begin : begin + size])
        for name in contents:
            if name not in found and (array := self._array(name, contents)) is not None:
                found[name] = array
        return found

    def _array(self, name: str, contents: dict[str, bytes]) -> Array | None:
        content = contents[name]
        kind, parts, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            return None
        about = json.loads(get_object_body(content, Array))
        chunks = [parts[i] for i in about["arraychunk_ids"]]
        if len(chunks) > len(set(chunks)):
            self._check(chunks, contents)
        if set(parts).isdisjoint(self._places) or set(chunks) != set(parts):
            return None  # Flower joins it, or refuses it
        if any(chunk not in self._places and len(contents[chunk]) >= LARGE for chunk in parts):
            return None  # some are too many for the disk
        self._arrays[name.encode()] = self._joined(chunks, contents)
        return Array(about["dtype"], tuple(about["shape"]), about["stype"], name.encode())

    def settle(self, content: RecordDict) -> None:
        """Give the arrays of what was put together their numbers, where ``objects`` named them.

        Flower copies an array while it puts a record together, and takes nothing but bytes.
        """
        for record in content.array_records.values():
            for array in record.values():
                if len(array.data) == NAME and (data := self._arrays.get(array.data)) is not None:
                    array.data = data  # type: ignore[assignment]  # what reads it takes any buffer

    def _check(self, chunks: list[str], contents: dict[str, bytes]) -> None:
        """Raise ``ValueError`` for a small reply that stands for a large one: it repeats chunks."""
        kept = {name: size for name, (_, size) in self._places.items()}
        size = sum(kept.get(name) or len(contents[name]) for name in chunks)
        if size > self._most:
            raise ValueError(f"it stands for {size / 1e6:.3g} MB, {self._most / 1e6:.3g} may be")

    def _joined(self, chunks: list[str], contents: dict[str, bytes]) -> memoryview:
        """The chunks one behind the other, in a file of their own; ``contents`` has small ones."""
        assert self._file is not None, "there are chunks"
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
    """Not one that Flower answers with another try."""


@final
class _Parts(dict[str, bytes]):
    """Those of one reply; the large ones are in ``spool``."""

    chunk_file: ChunkFile


@contextmanager
def whole_by(deadline: float, spool: Callable[[], ChunkFile] | None = None) -> Iterator[None]:
    """Replies pulled in this context must be whole by ``deadline``, a ``time.monotonic()``, and
    may not stand still for ``STALLED`` seconds; one that is not becomes an error reply.

    ``spool``: makes what takes the large parts of one reply; without it they stay in memory.
    """
    theirs = vars(grpc_grid)  # names that the module imports, and its grid looks up there
    pull: Callable[..., dict[str, bytes]] = theirs["pull_objects"]
    inflate: Callable[..., InflatableObject] = theirs["inflate_object_from_contents"]

    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **named: object
    ) -> dict[str, bytes]:
        last = time.monotonic()
        kept = spool() if spool else None

        def pull_one(part: str) -> bytes:
            nonlocal last
            try:
                content = pull_object_fn(part)
            except ObjectUnavailableError:
                if time.monotonic() > min(deadline, last + STALLED):
                    raise _Halfway(part) from None
                raise
            last = time.monotonic()
            return kept.take(part, content) if kept else content

        try:
            parts = pull(object_ids, pull_one, **{"initial_backoff": AGAIN, **named})
        except _Halfway as part:
            error = ObjectUnavailableError(str(part))
            error.args = (f"{HALFWAY}, without {str(part)[:12]}",)
            raise error from None
        if kept:
            parts = _Parts(parts)
            parts.chunk_file = kept
        return parts

    def put_together(name: str, parts: dict[str, bytes]) -> InflatableObject:
        if not isinstance(parts, _Parts):
            return inflate(name, parts)
        message = inflate(name, parts, objects=parts.chunk_file.objects(parts))
        if isinstance(message, Message) and message.has_content():
            parts.chunk_file.settle(message.content)
        return message

    theirs |= {"pull_objects": pull_objects, "inflate_object_from_contents": put_together}
    try:
        yield
    finally:
        theirs |= {"pull_objects": pull, "inflate_object_from_contents": inflate}


@contextmanager
def few_at_once() -> Iterator[None]:
    """What is sent in this context is written out a few parts at a time."""
    theirs = vars(grpc_grid)
    push: Callable[..., None] = theirs["push_objects"]

    def push_objects(
        objects: dict[str, InflatableObject],
        push_object_fn: Callable[[str, bytes], None],
        *,
        object_ids_to_push: Container[str] | None = None,
        **named: object,
    ) -> None:
        some: dict[str, InflatableObject] = {}
        size = 0
        for name in list(objects):
            each = objects.pop(name)
            if object_ids_to_push is not None and name not in object_ids_to_push:
                continue
            some[name] = each
            size += len(each.data) if isinstance(each, ArrayChunk) else 0
            if size >= AT_ONCE:
                push(some, push_object_fn, **named)
                some, size = {}, 0
        push(some, push_object_fn, **named)

    theirs["push_objects"] = push_objects
    try:
        yield
    finally:
        theirs["push_objects"] = push
