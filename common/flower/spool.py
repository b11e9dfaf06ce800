"""Large parts of a reply go to a file while they are pulled: it is never in memory as a whole.

Flower pulls the parts of a reply (chunks of at most 20 MB of an array), joins them and copies what
it has joined, so a reply lies in memory three times. Here a chunk is written to a file without a
name as soon as it is there, and an array whose chunks are all in files is a mapping of a file in
which they stand in their order.
"""

import json
import tempfile
import threading
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO, final

from flwr.app import Array, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)

from common.files import written_in

NAME = 64  #: characters of a part's name
LARGE = 1 << 20  #: bytes of a chunk that goes to the file


@final
class Spool:
    """The large chunks of one reply, of ``most`` bytes together: what is more stays in memory.

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
