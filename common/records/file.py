"""A payload as one safetensors file: the flat arrays under their dtypes, the rest as metadata.

The file begins with its header's length N (8 bytes, little-endian), then N bytes of JSON, padded to
a multiple of 8: ``__metadata__`` (kind and skeleton), and for each array dtype, shape and the place
[begin, end) of its numbers behind the header. The arrays lie behind each other without a gap,
those of the widest numbers first, so that every number is aligned.

A file is mapped, so that its numbers take memory only where they are used, and once.
"""

from __future__ import annotations

import os
from mmap import ACCESS_COPY, mmap
from pathlib import Path

from common.records.arrays import Flat, Numbers, numpy_dtype
from common.records.skeleton import Json, dump, parse

MAX_HEADER = 100_000_000
"""Bytes; what the safetensors library itself allows."""

_CODES = {"bool": "BOOL", "bfloat16": "BF16"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


def to_file(kind: str, skeleton: bytes, arrays: dict[str, Numbers]) -> bytes:
    """The whole file; each number is copied once, since models may be large."""
    header: dict[str, Json] = {"__metadata__": {"kind": kind, "skeleton": skeleton.decode()}}
    begin, body = 0, list[memoryview]()
    for name in sorted(arrays, key=lambda name: -numpy_dtype(name).itemsize):
        end = begin + sum(map(len, arrays[name]))
        header[name] = _place(name, begin, end)
        begin, body = end, body + arrays[name]
    text = dump(header)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *body])


def from_file(path: Path) -> tuple[str, bytes, dict[str, Flat]]:
    """Kind, skeleton and arrays of a file.

    Lengths and places are compared with the file's size before any of them is believed. Raises a
    one-line ``ValueError`` if they do not fit, ``OSError`` if the file cannot be opened.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ValueError(f"it claims a header of {length} bytes in a file of {size}")
        header = parse(file.read(length), "its header")
        body = memoryview(mmap(file.fileno(), size, access=ACCESS_COPY))[8 + length :]
    claims = header if isinstance(header, dict) else {}
    match claims.pop("__metadata__", None):
        case {"kind": str(kind), "skeleton": str(skeleton)}:
            begin, pool = 0, dict[str, Flat]()
        case _:
            raise ValueError("its header is no JSON object with a kind and a skeleton")
    for name, claim in claims.items():
        match claim:
            case {"data_offsets": [_, int(end)]} if begin <= end <= len(body) and claim == _place(
                name, begin, end
            ):
                pool[name] = Flat(name, body[begin:end])
                begin = end
            case _:
                shown = f"array {name[:40]!r} is described by {str(claim)[:80]}"
                raise ValueError(f"{shown}, expected from byte {begin} on, of {len(body)}")
    if begin != len(body):
        raise ValueError(f"its arrays end at byte {begin} of {len(body)}")
    return kind, skeleton.encode(), pool


def _place(name: str, begin: int, end: int) -> Json:
    """How the header describes an array."""
    width = numpy_dtype(name).itemsize
    shape: list[Json] = [(end - begin) // width]
    return {"dtype": _CODES[name], "shape": shape, "data_offsets": [begin, end]}
