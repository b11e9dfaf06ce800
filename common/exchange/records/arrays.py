"""The numbers of a payload: one flat array for each dtype, handed out in pieces.

On the wire an array has the standard ``.npy`` form. Its header is compared with the one form that
NumPy writes and never evaluated; the numbers are counted before any of them is believed.

On disk a payload is one safetensors file: its header's length N (8 bytes, little-endian), then N
bytes of JSON, padded to a multiple of 8: ``__metadata__`` (kind, skeleton and digest), and for each
array dtype, shape and the place [begin, end) of its numbers behind the header. The arrays lie
behind each other without a gap, those of the widest numbers first, so that every number is aligned.
The digest is the SHA-256 of kind, skeleton and the arrays' names and lengths as a JSON list, and of
all numbers behind it. A file whose digest is another one is refused. A file is mapped, so that its
numbers take memory only where they are used, and once.
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
"""The bytes of one flat array, in pieces that belong behind each other."""


MAX_HEADER = 100_000_000
"""Bytes; what the safetensors library itself allows."""
CHUNK = 1 << 20  #: bytes that are read at a time for the digest

_CODES = {"bool": "BOOL", "bfloat16": "BF16"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


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


def to_file(kind: str, skeleton: bytes, arrays: dict[str, Numbers]) -> list[bytes | memoryview]:
    """The whole file in pieces; no number is copied, since models may be large."""
    said: dict[str, Json] = {"kind": kind, "skeleton": skeleton.decode()}
    header: dict[str, Json] = {"__metadata__": said}
    begin, body, sizes = 0, list[memoryview](), dict[str, int]()
    for name in sorted(arrays, key=lambda name: -numpy_dtype(name).itemsize):
        sizes[name] = sum(map(len, arrays[name]))
        header[name] = _place(name, begin, begin + sizes[name])
        begin, body = begin + sizes[name], body + arrays[name]
    said["sha256"] = digest(kind, skeleton.decode(), sizes, body)
    text = dump(header)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *body]


def digest(
    kind: str, skeleton: str, sizes: Mapping[str, int], body: Iterable[bytes | memoryview]
) -> str:
    """The SHA-256 that a file has, in hexadecimal; ``sizes``: bytes of each array, in order."""
    sha = hashlib.sha256(dump([kind, skeleton, dict(sizes)]))
    for piece in body:
        sha.update(piece)
    return sha.hexdigest()


def from_file(path: Path) -> tuple[str, bytes, dict[str, Flat]]:
    """Kind, skeleton and arrays of a file.

    Lengths and places are compared with the file's size before any of them is believed, and the
    digest before a number is. Raises a one-line ``ValueError`` if they do not fit, ``OSError`` if
    the file cannot be opened.
    """
    with open(path, "rb") as file:
        kind, skeleton, sizes, start = _proven(file)
        size = os.fstat(file.fileno()).st_size
        body = memoryview(mmap(file.fileno(), size, access=ACCESS_COPY))[start:]
    begin, pool = 0, dict[str, Flat]()
    for name, length in sizes.items():
        pool[name] = Flat(name, body[begin : begin + length])
        begin += length
    return kind, skeleton.encode(), pool


def prove(path: Path) -> str:
    """The kind of a whole file; raises as ``from_file`` does, without keeping a number."""
    with open(path, "rb") as file:
        return _proven(file)[0]


def _proven(file: BinaryIO) -> tuple[str, str, dict[str, int], int]:
    """Kind, skeleton, bytes of each array and where the arrays begin."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER):
        raise ValueError(f"it claims a header of {length} bytes in a file of {size}")
    header = parse(file.read(length), "its header")
    claims, rest = header if isinstance(header, dict) else {}, size - 8 - length
    match claims.pop("__metadata__", None):
        case {"kind": str(kind), "skeleton": str(skeleton), **more}:
            begin, sizes = 0, dict[str, int]()
        case _:
            raise ValueError("its header is no JSON object with a kind and a skeleton")
    for name, claim in claims.items():
        match claim:
            case {"data_offsets": [_, int(end)]} if begin <= end <= rest and claim == _place(
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
    if more["sha256"] != digest(kind, skeleton, sizes, iter(lambda: file.read(CHUNK), b"")):
        raise ValueError("it is damaged: its digest is not that of what it holds")
    return kind, skeleton, sizes, 8 + length


def _place(name: str, begin: int, end: int) -> Json:
    """How the header describes an array."""
    width = numpy_dtype(name).itemsize
    shape: list[Json] = [(end - begin) // width]
    return {"dtype": _CODES[name], "shape": shape, "data_offsets": [begin, end]}
