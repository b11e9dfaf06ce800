"""Arrays out of other projects' pickles, and nothing else.

A pickle is a program. This reads those that make numpy arrays, numbers, text, lists, tuples and
dictionaries; whatever else a pickle wants to call is refused by its name and not called.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, final

from numpy.lib import format as npy

ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # how old pickles keep bytes
}
DAMAGE = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, MemoryError),
    *(AttributeError, IndexError, KeyError, NotImplementedError, OverflowError, RuntimeError),
    *(TypeError, ValueError),
)
"""What reading a file that is cut off or was changed raises, here and there."""


@final
class Refused(Exception):
    """The pickle wants something that it shall not have."""


@final
class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        of_today = module.replace("numpy.core.", "numpy._core.")
        if (of_today, name) not in ARRAYS:
            raise Refused(f"{module}.{name}")
        return super().find_class(of_today, name)


def read_npz(path: Path, key: str) -> Any:
    """The object that ``numpy.savez`` keeps under ``key``, pickled or a plain array.

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
    try:
        return _Arrays(file).load().item()
    except Refused as error:
        raise Refused(f"its pickle asks for {error}, which is not opened; arrays are") from None
