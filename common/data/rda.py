"""Read data frames of R's ``.rda`` files (``save``), and texts of the lazy-load files (``.rdx`` and
``.rdb``) of its packages, without R, and without running any code.

The files have R's serialization format in its binary form ("R Internals", section 1.8): a pairlist
of named objects, compressed. This module reads vectors of numbers, factors and text, and refuses
everything else, such as functions and environments, by name.
"""

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from common.files import check_regular

MOST_BYTES = 2**28  #: most bytes of a decompressed file
DEEPEST = 100  #: most nested objects
MAGIC = (b"RDX2\n", b"RDX3\n")
OPEN: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZ": bz2.open,
    b"\xfd7": lzma.open,
}
SYMBOL, PAIRLIST, TEXT, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
ALTREP, NULL, REFERENCE = 238, 254, 255
MISSING = -(2**31)  #: R's NA of integers


@final
class Frame(NamedTuple):
    """Columns of a data frame by name, in order; factors are codes from 0 on."""

    columns: dict[str, np.ndarray]
    levels: dict[str, tuple[str, ...]]  #: names of the codes of each factor


@final
class _Object(NamedTuple):
    value: Any
    attributes: dict[str, Any]


def read_frame(path: Path, name: str) -> Frame:
    """Return the data frame ``name`` of a file.

    Raises ``ValueError``, one line with the path, for a missing, damaged or truncated file, a file
    without this data frame, or one with other objects than vectors of numbers, factors and text.
    """
    with _located(path):
        content = _content(path)
        if content[:5] not in MAGIC:
            raise ValueError("no .rda file")
        return _frame(_named(_Reader(content[5:]).named(), name))


def read_lazy_texts(path: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the vectors of text ``names`` of a package's data; ``path``: its ``.rdx`` file.

    That file has the place of each object in the ``.rdb`` file beside it, where an object is its
    size in 4 bytes and its content, compressed by zlib. Raises ``ValueError`` as ``read_frame``.
    """
    with _located(path):
        fields = _list(_Reader(_content(path)).item())
        if _named(fields, "compressed").value.tolist() not in ([1], [True]):
            raise ValueError("its objects are not compressed by zlib")
        places = _list(_named(fields, "variables"))
        places = {name: _named(places, name) for name in names}
    with _located(path := path.with_suffix(".rdb")):
        content, texts = path.read_bytes(), dict[str, list[str]]()
        for name, place in places.items():
            start, length = place.value.tolist()
            unpacker = zlib.decompressobj()
            value = (
                _Reader(unpacker.decompress(content[start + 4 : start + length], MOST_BYTES))
                .item()
                .value
            )
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise ValueError(f"{name!r} holds no text")
            texts[name] = value
        return texts


@contextmanager
def _located(path: Path) -> Iterator[None]:
    """Convert the errors of a damaged file into a ``ValueError``, one line with ``path``."""
    check_regular(path)
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, struct.error, IndexError) as error:
        raise ValueError(f"{path}: damaged or no file of R ({error})") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _named(objects: Mapping[str, _Object], name: str) -> _Object:
    if name not in objects:
        raise ValueError(f"it has no {name!r}, but {', '.join(objects)}")
    return objects[name]


def _list(item: _Object) -> dict[str, _Object]:
    """Return the objects of a list by name."""
    names = item.attributes.get("names")
    if not isinstance(item.value, list) or names is None:
        raise ValueError("the object is no list with names")
    return dict(zip(names.value, item.value, strict=True))


def _content(path: Path) -> bytes:
    with open(path, "rb") as file:
        start = file.read(2)
    opened: Any = OPEN.get(start, open)
    with opened(path, "rb") as file:
        content: bytes = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return content


def _frame(item: _Object) -> Frame:
    columns, levels = dict[str, np.ndarray](), dict[str, tuple[str, ...]]()
    for name, column in _list(item).items():
        values, known = column.value, column.attributes.get("levels")
        if not isinstance(values, np.ndarray):
            raise ValueError(f"column {name!r} holds no numbers and no factor")
        if values.dtype == np.int32 and (values == MISSING).any():
            raise ValueError(f"column {name!r} has missing values")
        if known is not None:
            values, levels[name] = values - 1, tuple(known.value)
            if not ((values >= 0) & (values < len(levels[name]))).all():
                raise ValueError(f"column {name!r} has codes without a level")
        columns[name] = values
    if len({len(values) for values in columns.values()}) != 1:
        raise ValueError("the columns differ in length")
    return Frame(columns, levels)


@final
class _Reader:
    """Reader of the binary form: big-endian numbers after the format line ``X``."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.symbols = content, 0, list[str]()
        if self._bytes(2) != b"X\n":
            raise ValueError("not in R's binary format")
        version, _, _ = (self._integer() for _ in range(3))
        if version not in (2, 3):
            raise ValueError(f"R's format {version}; 2 and 3 can be read")
        if version == 3:
            self._bytes(self._integer())  # name of the encoding

    def named(self) -> dict[str, _Object]:
        """Return the objects of the file by name."""
        return self._pairs(self._integer(), 0)

    def item(self) -> _Object:
        """Return the only object of the file."""
        return self._item(0)

    def _bytes(self, count: int) -> bytes:
        if not 0 <= count <= len(self.content) - self.at:
            raise EOFError("it ends too early")
        self.at += count
        return self.content[self.at - count : self.at]

    def _integer(self) -> int:
        value: int = struct.unpack(">i", self._bytes(4))[0]
        return value

    def _numbers(self, dtype: str) -> np.ndarray:
        native = np.dtype(dtype).newbyteorder("=")
        content = self._bytes(self._integer() * native.itemsize)
        return np.frombuffer(content, dtype).astype(native)

    def _pairs(self, flags: int, depth: int) -> dict[str, _Object]:
        pairs: dict[str, _Object] = {}
        while flags & 255 == PAIRLIST:
            if flags & 512:
                self._pairs(self._integer(), depth + 1)
            tag = self._item(depth + 1).value if flags & 1024 else ""
            pairs[str(tag)] = self._item(depth + 1)
            flags = self._integer()
        if flags & 255 != NULL:
            raise ValueError(f"it holds an object of R's type {flags & 255}, which is not read")
        return pairs

    def _item(self, depth: int) -> _Object:
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} nested objects")
        flags = self._integer()
        kind = flags & 255
        value: Any = None
        if kind == PAIRLIST:
            return _Object(self._pairs(flags, depth), {})
        if kind == SYMBOL:
            self.symbols.append(str(self._item(depth + 1).value))
            return _Object(self.symbols[-1], {})
        if kind == REFERENCE:
            return _Object(self.symbols[(flags >> 8 or self._integer()) - 1], {})
        if kind == TEXT:
            length = self._integer()
            return _Object("" if length < 0 else self._bytes(length).decode("utf-8", "replace"), {})
        if kind == ALTREP:  # compact row names, which are not used
            for _ in range(3):
                self._item(depth + 1)
            return _Object(None, {})
        if kind in (INTEGER, LOGICAL, REAL):
            value = self._numbers(">f8" if kind == REAL else ">i4")
        elif kind in (STRINGS, LIST):
            items = [self._item(depth + 1) for _ in range(self._integer())]
            value = [item.value for item in items] if kind == STRINGS else items
        elif kind != NULL:
            raise ValueError(f"it holds an object of R's type {kind}, which is not read")
        attributes = self._pairs(self._integer(), depth + 1) if flags & 512 else {}
        return _Object(value, attributes)
