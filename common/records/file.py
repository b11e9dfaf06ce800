"""A payload as one safetensors file: the flat arrays under their dtypes, the rest as metadata.

The file begins with its header's length N (8 bytes, little-endian), then N bytes of JSON, padded to
a multiple of 8: ``__metadata__`` (kind, skeleton and digest), and for each array dtype, shape and
the place [begin, end) of its numbers behind the header. The arrays lie behind each other without a
gap, those of the widest numbers first, so that every number is aligned.

The digest is the SHA-256 of kind, skeleton and the arrays' names and lengths as a JSON list, and of
all numbers behind it. A file whose digest is another one is refused.

A file is mapped, so that its numbers take memory only where they are used, and once.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO

from common.records.arrays import Flat, Numbers, numpy_dtype
from common.records.skeleton import Json, dump, parse

MAX_HEADER = 100_000_000
"""Bytes; what the safetensors library itself allows."""
CHUNK = 1 << 20  #: bytes that are read at a time for the digest

_CODES = {"bool": "BOOL", "bfloat16": "BF16"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


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
