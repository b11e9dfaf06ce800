"""Read arrays from other projects' pickles without running their code.

A pickle is a program. This module accepts pickles of numpy arrays, numbers, text, lists, tuples and
dictionaries, and refuses every other call by name. It does not call numpy's functions either: it
records their arguments and builds the arrays itself. numpy does not check a damaged description and
would read memory outside the array.
"""

import io
import pickle
import pickletools
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.lib import format as npy

DAMAGE = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, MemoryError),
    *(AttributeError, IndexError, KeyError, NotImplementedError, OverflowError, RuntimeError),
    *(TypeError, ValueError, SyntaxError, tokenize.TokenError),
)
"""Exceptions that a truncated or changed file can raise while it is read."""
NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


@final
class Refused(Exception):
    """The pickle has a call or a value that is not allowed."""


def read_npz(path: Path, key: str) -> Any:
    """Return the object that ``numpy.savez`` pickled under ``key``.

    Raises ``ValueError``, one line with the path, for a missing file or key, a damaged or truncated
    file, or a pickle with anything but arrays and plain containers (the message names it).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{key}.npy" not in archive.namelist():
                keys = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
                raise Refused(f"has no key {key!r}; it has {keys or 'none'}")
            with archive.open(f"{key}.npy") as file:
                return _read(file)
    except Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or no .npz file ({reason[:200]})") from None


def _read(file: IO[bytes]) -> Any:
    version = npy.read_magic(file)
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = header(file)
    if not dtype.hasobject or shape:
        raise Refused("it is no pickled dictionary")
    code = file.read()
    _check(code)
    array = _build(_Arrays(io.BytesIO(code)).load())
    if not isinstance(array, np.ndarray) or array.shape != ():
        raise Refused("it is no pickled dictionary")
    return array.item()


def _check(code: bytes) -> None:
    """Raise ``ValueError`` for a pickle that would need more memory than its size in bytes."""
    for instruction, argument, _ in pickletools.genops(code):  # genops checks the lengths
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


def _build(value: Any) -> Any:
    """Replace descriptions of arrays in ``value`` by arrays, recursively."""
    if isinstance(value, dict):
        return {_build(key): _build(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_build(item) for item in value]
    if isinstance(value, _Array):
        _, shape, kind, fortran, data = value.state
        if kind.name == "O":
            array = np.empty(len(data), dtype=object)
            for i, item in enumerate(data):
                array[i] = _build(item)
        else:
            array = np.frombuffer(bytes(data), np.dtype(kind.order + kind.name))
        return array.reshape(shape, order="F" if fortran else "C")
    return value
