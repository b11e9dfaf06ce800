"""The numbers of a payload: one flat array for each dtype, handed out in pieces.

On the wire an array has the standard ``.npy`` form. Its header is compared with the one form that
NumPy writes and never evaluated; the numbers are counted before any of them is believed.
"""

from __future__ import annotations

import io
import math
import re
from typing import TypeAlias, final

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from common.records.skeleton import DTYPES, dtype_name

_HEADER = re.compile(
    rb"\{'descr': '([<>|=][a-z]\d{1,2})', 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n"
)
_PREFIX = b"\x93NUMPY\x01\x00"

Numbers: TypeAlias = list[memoryview]
"""The bytes of one flat array, in pieces that belong behind each other."""


def flatten(leaves: list[tuple[str, Tensor]]) -> dict[str, Numbers]:
    """One array for each dtype: the tensors behind each other, in the order given, not copied."""
    flat: dict[str, Numbers] = {}
    for _, leaf in leaves:
        numbers = leaf.detach().reshape(-1).cpu().view(torch.uint8).numpy()
        flat.setdefault(dtype_name(leaf.dtype), []).append(numbers.data)
    return flat


def to_npy(name: str, numbers: Numbers) -> Array:
    """A flat array as it travels; each number is copied once, since models may be large."""
    dtype = numpy_dtype(name)
    shape = (sum(map(len, numbers)) // dtype.itemsize,)
    header = io.BytesIO()
    layout = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, layout)
    data = b"".join([header.getvalue(), *numbers])
    return Array(dtype=str(dtype), shape=shape, stype="numpy.ndarray", data=data)


def from_npy(name: str, array: Array) -> Flat:
    """Inverse of ``to_npy``; a one-line ``ValueError`` if name, header and bytes do not agree."""
    expected = numpy_dtype(name)
    descr, count, start = _header(name, array.data)
    body = len(array.data) - start
    if descr != expected.str or count * expected.itemsize != body:
        raise ValueError(f"array {name!r} claims {count} numbers {descr!r} in {body} bytes")
    return Flat(name, memoryview(array.data)[start:])


@final
class Flat:
    """One flat array that arrived, and how much of it is handed out.

    It is copied, unless its bytes can be written to and lie where numbers may lie.
    """

    def __init__(self, name: str, data: memoryview) -> None:
        numbers = np.frombuffer(data, dtype=numpy_dtype(name))
        if not numbers.flags.carray:
            numbers = numbers.copy()
        if name == "bool" and bool((numbers.view(np.uint8) > 1).any()):
            raise ValueError("array 'bool' has bytes other than 0 and 1")
        self.at = 0
        self.numbers = torch.from_numpy(numbers).view(DTYPES[name])

    def left(self) -> int:
        """How many numbers nobody has asked for yet."""
        return self.numbers.numel() - self.at


def take(pool: dict[str, Flat], dtype: str, shape: list[int]) -> Tensor:
    """The next piece of the array of ``dtype``; ``ValueError`` if it has not that many numbers."""
    size, flat = math.prod(shape), pool.get(dtype)
    if flat is None:
        if size == 0:
            return torch.empty(shape, dtype=DTYPES[dtype])
        raise ValueError(f"a field asks for {dtype}{shape}, but no {dtype} array came")
    if size > flat.left():
        raise ValueError(
            f"a field asks for {dtype}{shape}, but only {flat.left()} numbers are left"
        )
    flat.at += size
    return flat.numbers[flat.at - size : flat.at].view(shape)


def body_bytes(array: Array) -> int:
    """Bytes of the numbers alone; 0 for what is no array of ours."""
    try:
        return len(array.data) - _header("", array.data)[2]
    except ValueError:
        return 0


def _header(name: str, data: bytes) -> tuple[str, int, int]:
    """Type and count that a version 1.0 ``.npy`` header claims, and where the numbers begin."""
    start = len(_PREFIX) + 2 + int.from_bytes(data[8:10], "little")
    found = _HEADER.fullmatch(data[10:start]) if data[:8] == _PREFIX else None
    if found is None or start > len(data):
        raise ValueError(f"array {name!r} is not .npy data of one axis")
    return found[1].decode(), int(found[2]), start


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """How NumPy stores a dtype, by name; ``ValueError`` for one that cannot travel."""
    if name not in DTYPES:
        known = ", ".join(sorted(DTYPES))
        raise ValueError(f"array {name[:40]!r} is of no known dtype; known: {known}")
    return np.dtype("uint16" if name == "bfloat16" else name)
