"""Arrays out of other projects' pickles, and nothing else.

A pickle is a program. This runs those that make numpy arrays, numbers, text, lists, tuples and
dictionaries; whatever else a pickle wants to call is refused by its name and not called. Not even
numpy's own functions are: what they would be told is noted, and arrays are made of it here, because
numpy believes a damaged description and reads memory that is not the array's.
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
"""What reading a file that is cut off or was changed raises, here and there."""
NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


@final
class Refused(Exception):
    """The pickle wants something that it shall not have."""


def read_npz(path: Path, key: str) -> Any:
    """The one object that ``numpy.savez`` pickled under ``key``.

    Raises ``ValueError``, one line with the path: no such file or key, a file that is damaged or
    cut off, a pickle of anything but arrays and plain containers (its name is told).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{key}.npy" not in archive.namelist():
                there = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
                raise Refused(f"has no key {key!r}; it has {there or 'none'}")
            with archive.open(f"{key}.npy") as file:
                return _read(file)
    except Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except DAMAGE as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or no .npz file ({said[:200]})") from None


def _read(file: IO[bytes]) -> Any:
    version = npy.read_magic(file)
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = header(file)
    if not dtype.hasobject or shape:
        raise Refused("it is no pickled dictionary")
    code = file.read()
    _check(code)
    array = _made(_Arrays(io.BytesIO(code)).load())
    if not isinstance(array, np.ndarray) or array.shape != ():
        raise Refused("it is no pickled dictionary")
    return array.item()


def _check(code: bytes) -> None:
    """Raise ``ValueError`` for a pickle that would take more memory than it has bytes."""
    for instruction, given, _ in pickletools.genops(code):  # lengths are checked by this
        if instruction.name.endswith("PUT") and given is not None and given > len(code):
            raise ValueError(f"{instruction.name} {given}")


@final
class _Arrays(pickle.Unpickler):
    """Notes for arrays in their places; ``_made`` makes them."""

    def find_class(self, module: str, name: str) -> Any:
        of_today = f"{module}.{name}".replace("numpy.core.", "numpy._core.")
        if of_today not in CALLS:
            raise Refused(
                f"its pickle asks for {module}.{name}, which is not opened; arrays of numbers are"
            )
        return _Call(CALLS[of_today])


@final
class _Call:
    """What a pickle may call; it cannot change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)

    def __setstate__(self, state: object) -> None:
        raise TypeError("a function has no state")


@final
class _Type:
    """A type of numbers, or ``O``."""

    def __init__(self, name: str) -> None:
        self.name, self.order = str(name).lstrip("<>|="), "<"
        if self.name[:1] == "O":
            self.name = "O"
        elif not NUMBERS.fullmatch(self.name):
            raise Refused(f"its pickle has an array of {name!r}, which is no type of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"


@final
class _Array:
    """An array: type, shape, order and the bytes or list of its elements."""

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


def _buffer(held: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", held))
    return array


CALLS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _Array,  # named as the kind of array that is made, and not called
    "numpy.dtype": lambda name, *_: _Type(name),
    "numpy._core.multiarray._reconstruct": lambda *_: _Array(),
    "numpy._core.multiarray.scalar": lambda kind, held: _buffer(held, kind, (), "C"),
    "numpy._core.numeric._frombuffer": _buffer,
    "_codecs.encode": lambda text, *_: str(text).encode("latin-1"),  # how old pickles keep bytes
}


def _made(noted: Any) -> Any:
    """The same with arrays for their notes."""
    if isinstance(noted, dict):
        return {_made(key): _made(value) for key, value in noted.items()}
    if isinstance(noted, list | tuple):
        return [_made(each) for each in noted]
    if isinstance(noted, _Array):
        _, shape, kind, fortran, held = noted.state
        if kind.name == "O":
            array = np.empty(len(held), dtype=object)
            for i, each in enumerate(held):
                array[i] = _made(each)
        else:
            array = np.frombuffer(bytes(held), np.dtype(kind.order + kind.name))
        return array.reshape(shape, order="F" if fortran else "C")
    return noted
