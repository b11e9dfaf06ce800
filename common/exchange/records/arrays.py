"""Numbers of a payload: one array of one axis for each dtype, with its tensors in order.

In a message an array has the standard ``.npy`` form. Its header must match the one form that NumPy
writes and is never evaluated. The length is checked before a number is read.

A file is a safetensors file. It starts with the length N of the header (8 bytes, little-endian).
The header is N bytes of JSON, padded to a multiple of 8: ``__metadata__`` (kind, schema and
digest), and for each array its dtype, its shape and the range [begin, end) of its bytes after the
header. The arrays follow without gaps, widest dtype first, so that every number is aligned. The
digest is the SHA-256 of a JSON list (kind, schema, names and lengths of the arrays), followed by
all numbers. A file with a wrong digest is refused. Files are memory-mapped, so that only numbers
that are used take memory.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Iterable, Mapping
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO, TypeAlias, final

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from common.exchange.records.schema import DTYPES, Json, dtype_name, dump, parse

_HEADER = re.compile(
    rb"\{'descr': '([<>|=][a-z]\d{1,2})', 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n"
)
_PREFIX = b"\x93NUMPY\x01\x00"

Numbers: TypeAlias = list[memoryview]
"""Bytes of the array of one dtype, as consecutive pieces."""


MAX_HEADER = 100_000_000
"""Limit of the safetensors library, in bytes."""
CHUNK = 1 << 20  #: bytes read at a time for the digest

_CODES = {"bool": "BOOL", "bfloat16": "BF16"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


def flatten(leaves: list[tuple[str, Tensor]]) -> dict[str, Numbers]:
    """Return one array for each dtype: the tensors in their order, without a copy."""
    arrays: dict[str, Numbers] = {}
    for _, leaf in leaves:
        numbers = leaf.detach().reshape(-1).cpu().view(torch.uint8).numpy()
        arrays.setdefault(dtype_name(leaf.dtype), []).append(numbers.data)
    return arrays


def to_npy(name: str, numbers: Numbers) -> Array:
    """Return the array in ``.npy`` form; each number is copied once, because models are large."""
    dtype = numpy_dtype(name)
    shape = (sum(map(len, numbers)) // dtype.itemsize,)
    header = io.BytesIO()
    layout = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, layout)
    data = b"".join([header.getvalue(), *numbers])
    return Array(dtype=str(dtype), shape=shape, stype="numpy.ndarray", data=data)


def from_npy(name: str, array: Array) -> ReceivedArray:
    """Return the array from ``to_npy``; raise ``ValueError`` if name, header and size differ."""
    expected = numpy_dtype(name)
    descr, count, start = _header(name, array.data)
    body = len(array.data) - start
    if descr != expected.str or count * expected.itemsize != body:
        raise ValueError(f"array {name!r} claims {count} numbers {descr!r} in {body} bytes")
    return ReceivedArray(name, memoryview(array.data)[start:])


@final
class ReceivedArray:
    """A received array of all tensors of one dtype; ``at``: how many of its numbers are read.

    The data are copied only if they are read-only or not aligned.
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
        """Return how many numbers are not read yet."""
        return self.numbers.numel() - self.at


def take(pool: dict[str, ReceivedArray], dtype: str, shape: list[int]) -> Tensor:
    """Return the next tensor from the array of ``dtype``; ``ValueError`` if it is too short."""
    size, array = math.prod(shape), pool.get(dtype)
    if array is None:
        if size == 0:
            return torch.empty(shape, dtype=DTYPES[dtype])
        raise ValueError(f"a field needs {dtype}{shape}, but the payload has no {dtype} array")
    if size > array.left():
        raise ValueError(f"a field needs {dtype}{shape}, but only {array.left()} numbers are left")
    array.at += size
    return array.numbers[array.at - size : array.at].view(shape)


def body_bytes(array: Array) -> int:
    """Return the bytes of the numbers, without the header; 0 for an array that is not .npy data."""
    try:
        return len(array.data) - _header("", array.data)[2]
    except ValueError:
        return 0


def _header(name: str, data: bytes) -> tuple[str, int, int]:
    """Return type and count in a version 1.0 ``.npy`` header, and the offset of the numbers."""
    start = len(_PREFIX) + 2 + int.from_bytes(data[8:10], "little")
    match = _HEADER.fullmatch(data[10:start]) if data[:8] == _PREFIX else None
    if match is None or start > len(data):
        raise ValueError(f"array {name!r} is not .npy data of one axis")
    return match[1].decode(), int(match[2]), start


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return NumPy's dtype for a name; raise ``ValueError`` if payloads do not support it."""
    if name not in DTYPES:
        known = ", ".join(sorted(DTYPES))
        raise ValueError(f"array {name[:40]!r} is of no known dtype; known: {known}")
    return np.dtype("uint16" if name == "bfloat16" else name)


def to_file(kind: str, schema: bytes, arrays: dict[str, Numbers]) -> list[bytes | memoryview]:
    """Return the content of a file in pieces; no number is copied, because models are large."""
    metadata: dict[str, Json] = {"kind": kind, "skeleton": schema.decode()}
    header: dict[str, Json] = {"__metadata__": metadata}
    begin, body, sizes = 0, list[memoryview](), dict[str, int]()
    for name in sorted(arrays, key=lambda name: -numpy_dtype(name).itemsize):
        sizes[name] = sum(map(len, arrays[name]))
        header[name] = _describe(name, begin, begin + sizes[name])
        begin, body = begin + sizes[name], body + arrays[name]
    metadata["sha256"] = digest(kind, schema.decode(), sizes, body)
    text = dump(header)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *body]


def digest(
    kind: str, schema: str, sizes: Mapping[str, int], body: Iterable[bytes | memoryview]
) -> str:
    """Return the SHA-256 of a file in hexadecimal; ``sizes``: bytes of each array, in order."""
    sha = hashlib.sha256(dump([kind, schema, dict(sizes)]))
    for piece in body:
        sha.update(piece)
    return sha.hexdigest()


def from_file(path: Path) -> tuple[str, bytes, dict[str, ReceivedArray]]:
    """Return kind, schema and arrays of a file.

    Lengths and ranges are checked against the file's size before they are used, and the digest is
    checked before a number is used. Raises a one-line ``ValueError`` if a check fails, ``OSError``
    if the file cannot be opened.
    """
    with open(path, "rb") as file:
        kind, schema, sizes, start = _check(file)
        size = os.fstat(file.fileno()).st_size
        body = memoryview(mmap(file.fileno(), size, access=ACCESS_COPY))[start:]
    begin, pool = 0, dict[str, ReceivedArray]()
    for name, length in sizes.items():
        pool[name] = ReceivedArray(name, body[begin : begin + length])
        begin += length
    return kind, schema.encode(), pool


def prove(path: Path) -> str:
    """Return the kind of an intact file; raise as ``from_file`` does. No number stays in memory."""
    with open(path, "rb") as file:
        return _check(file)[0]


def _check(file: BinaryIO) -> tuple[str, str, dict[str, int], int]:
    """Return kind, schema, bytes of each array and the offset of the first, after all checks."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER):
        raise ValueError(f"it claims a header of {length} bytes in a file of {size}")
    header = parse(file.read(length), "its header")
    claims, rest = header if isinstance(header, dict) else {}, size - 8 - length
    match claims.pop("__metadata__", None):
        case {"kind": str(kind), "skeleton": str(schema), **more}:
            begin, sizes = 0, dict[str, int]()
        case _:
            raise ValueError("its header is no JSON object with a kind and a schema")
    for name, claim in claims.items():
        match claim:
            case {"data_offsets": [_, int(end)]} if begin <= end <= rest and claim == _describe(
                name, begin, end
            ):
                sizes[name] = end - begin
                begin = end
            case _:
                shown = f"array {name[:40]!r} is described by {str(claim)[:80]}"
                raise ValueError(f"{shown}, expected from byte {begin} on, of {rest}")
    if begin != rest:
        raise ValueError(f"its arrays end at byte {begin} of {rest}")
    if "sha256" not in more:
        raise ValueError("it has no digest: an earlier release wrote it")
    if more["sha256"] != digest(kind, schema, sizes, iter(lambda: file.read(CHUNK), b"")):
        raise ValueError("it is damaged: its digest does not match its content")
    return kind, schema, sizes, 8 + length


def _describe(name: str, begin: int, end: int) -> Json:
    """Return the entry of an array in the header."""
    width = numpy_dtype(name).itemsize
    shape: list[Json] = [(end - begin) // width]
    return {"dtype": _CODES[name], "shape": shape, "data_offsets": [begin, end]}
