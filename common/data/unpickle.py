"""Read arrays from other projects' pickles without running their code.

A pickle is a program. This module accepts pickles of numpy arrays, numbers, text, lists, tuples and
dictionaries, and refuses every other call by name. It does not call numpy's functions either: it
records their arguments and builds the arrays itself. numpy does not check a damaged description and
would read memory outside the array.

A small file can describe an object that fills any memory, by compression or by lists that contain
one object many times. The sizes are therefore read and bounded before anything is built.
"""

import io
import pickle
import pickletools
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.lib import format as npy

from common.files import check_regular

DAMAGE = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, MemoryError),
    *(AttributeError, IndexError, KeyError, NotImplementedError, OverflowError, RuntimeError),
    *(TypeError, ValueError, SyntaxError, tokenize.TokenError),
)
"""Exceptions that a truncated or changed file can raise while it is read."""
MOST_BYTES = 2**36  #: most bytes in all files of a data set: 5 million float images of 32×32×3
MOST_COMPRESSION = 100  #: most bytes of content per byte of the files, beyond ``FREE_BYTES``
FREE_BYTES = 2**30  #: bytes of content that files of any size can have
MOST_SHARING = 16  #: most bytes of objects per byte of a pickle, beyond ``FREE_SHARING``
FREE_SHARING = 2**26
MOST_VALUES = 2**25  #: most values in one file outside numeric arrays
NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


@final
class Refused(Exception):
    """The pickle has a call or a value that is not allowed."""


def read_npz(path: Path, key: str) -> Any:
    """Return the object that ``numpy.savez`` pickled under ``key``.

    Raises ``ValueError``, one line with the path, for a missing file or key, a damaged or truncated
    file, a content beyond the bounds of this module, or a pickle with anything but arrays and plain
    containers (the message names it).
    """
    with _one_line(path), zipfile.ZipFile(path) as archive:
        _size(path, archive, key)
        with archive.open(f"{key}.npy") as file:
            return _read(file)


def read_npy(path: Path) -> Any:
    """Return the object that ``numpy.save`` pickled; raise ``ValueError`` as ``read_npz`` does."""
    with _one_line(path), open(path, "rb") as file:
        return _read(file)


def check_sizes(paths: Iterable[Path], key: str) -> None:
    """Raise ``ValueError``, one line, if the content of ``key`` in all files is too large."""
    content, files = 0, 0
    for path in paths:
        with _one_line(path):
            with zipfile.ZipFile(path) as archive:
                content += _size(path, archive, key)
            files += path.stat().st_size
            _check_expansion(content, files, "it and the files before it hold")


def _size(path: Path, archive: zipfile.ZipFile, key: str) -> int:
    """Return the size of the content of ``key`` in bytes; raise ``Refused`` if it is too large."""
    if f"{key}.npy" not in archive.namelist():
        keys = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
        raise Refused(f"has no key {key!r}; it has {keys or 'none'}")
    size = archive.getinfo(f"{key}.npy").file_size
    _check_expansion(size, path.stat().st_size, f"{key!r} holds")
    return size


def _check_expansion(content: int, files: int, what: str) -> None:
    """Raise ``Refused`` if files of ``files`` bytes have too many bytes of content."""
    most = min(max(MOST_COMPRESSION * files, FREE_BYTES), MOST_BYTES)
    if content > most:
        raise Refused(
            f"{what} {content:,} bytes, at most {most:,} are allowed for {files:,} bytes on disk; "
            "save images as uint8 or, with numpy.savez, uncompressed"
        )


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn the block's exceptions for a damaged or refused file into a line with its path."""
    check_regular(path)
    try:
        yield
    except Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or no {path.suffix} file ({reason[:200]})") from None


def _read(file: IO[bytes]) -> Any:
    version = npy.read_magic(file)
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = header(file)
    if not dtype.hasobject or shape:
        raise Refused("it is no pickled dictionary")
    code = file.read()
    _check(code)
    described = _Arrays(io.BytesIO(code)).load()
    weight, most = _weight(described, {}), max(MOST_SHARING * len(code), FREE_SHARING)
    if weight > most:
        raise Refused(
            f"its pickle of {len(code):,} bytes makes objects of {min(weight, 2**63):,} bytes, at "
            f"most {most:,} are allowed; save arrays of numbers"
        )
    array = _build(described)
    if not isinstance(array, np.ndarray) or array.shape != ():
        raise Refused("it is no pickled dictionary")
    return array.item()


def _check(code: bytes) -> None:
    """Raise ``ValueError`` for a pickle that would need more memory than its size in bytes."""
    for i, (instruction, argument, _) in enumerate(pickletools.genops(code)):  # checks lengths
        if i > MOST_VALUES:
            raise Refused(f"it holds more than {MOST_VALUES:,} values outside arrays; save arrays")
        if instruction.name.endswith("PUT") and argument is not None and argument > len(code):
            raise ValueError(f"{instruction.name} {argument}")


@final
class _Arrays(pickle.Unpickler):
    """Unpickler that returns descriptions of arrays, which ``_build`` turns into arrays."""

    def find_class(self, module: str, name: str) -> Any:
        current = f"{module}.{name}".replace("numpy.core.", "numpy._core.")
        if current not in CALLS:
            raise Refused(
                f"its pickle calls {module}.{name}, which is not allowed; save arrays of numbers"
            )
        return _Call(CALLS[current])


@final
class _Call:
    """Function that a pickle may call but not modify."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise TypeError("a function has no state")


@final
class _Type:
    """Numeric dtype, or ``O`` for objects."""

    def __init__(self, name: str) -> None:
        self.name, self.order = str(name).lstrip("<>|="), "<"
        if self.name[:1] == "O":
            self.name = "O"
        elif not NUMBERS.fullmatch(self.name):
            raise Refused(f"its pickle has an array of {name!r}, which is no numeric type")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"


@final
class _Array:
    """Description of an array: type, shape, order and the bytes or list of its elements."""

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


def _buffer(data: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", data))
    return array


CALLS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _Array,  # only named as the array class, never called
    "numpy.dtype": lambda name, *_: _Type(name),
    "numpy._core.multiarray._reconstruct": lambda *_: _Array(),
    "numpy._core.multiarray.scalar": lambda kind, data: _buffer(data, kind, (), "C"),
    "numpy._core.numeric._frombuffer": _buffer,
    "_codecs.encode": lambda text, *_: str(text).encode("latin-1"),  # bytes in old pickles
}


def _weight(value: Any, known: dict[int, int]) -> int:
    """Return about how many bytes ``value`` needs with a copy of every shared object.

    ``known``: weights of objects by id, filled here. It makes the time linear in the file's size.
    """
    if isinstance(value, _Array):
        *_, value = value.state
        if isinstance(value, bytes | bytearray):
            return len(value)
    if isinstance(value, str | bytes | bytearray):  # an array of text has four bytes per character
        return 8 + 4 * len(value)
    if not isinstance(value, dict | list | tuple):
        return 8
    if id(value) not in known:
        known[id(value)] = 2**63  # until it is known: the object contains itself
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 64 + sum(_weight(item, known) for item in items)
    return known[id(value)]


def _build(value: Any) -> Any:
    """Replace descriptions of arrays in ``value`` by arrays, recursively."""
    if isinstance(value, dict):
        return {_build(key): _build(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_build(item) for item in value]
    if isinstance(value, _Array):
        _, shape, kind, fortran, data = value.state
        if kind.name == "O":
            if not isinstance(data, list):  # bytes would become one object for each byte
                raise TypeError("an array of objects without a list")
            array = np.empty(len(data), dtype=object)
            for i, item in enumerate(data):
                array[i] = _build(item)
        else:
            if not isinstance(data, bytes | bytearray):  # bytes(n) would make n zeros
                raise TypeError("an array without bytes")
            array = np.frombuffer(bytes(data), np.dtype(kind.order + kind.name))
        return array.reshape(shape, order="F" if fortran else "C")
    return value
