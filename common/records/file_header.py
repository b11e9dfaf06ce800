"""The header of a safetensors file, checked before anything is allocated for what it claims.

The file begins with the header's length N (8 bytes, little-endian), then N bytes of JSON: for each
tensor dtype, shape and the place [begin, end) of its bytes behind the header.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from common.records.skeleton import MAX_AXES, parse

MAX_HEADER = 100_000_000
"""Bytes; what the safetensors library itself allows."""

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
}


def check_header(path: Path) -> None:
    """Raise a one-line ``ValueError`` unless lengths, shapes and places fit the file's size."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ValueError(f"it claims a header of {length} bytes in a file of {size}")
        header = parse(file.read(length), "its header")
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    body = size - 8 - length
    for name, claim in header.items():
        _check_claim(name, claim, body)


def _check_claim(name: str, claim: Any, body: int) -> None:
    try:
        bits, shape, (begin, end) = _BITS[claim["dtype"]], claim["shape"], claim["data_offsets"]
        whole = len(shape) <= MAX_AXES and all(
            type(n) is int and n >= 0 for n in (*shape, begin, end)
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"tensor {name[:80]!r} is described by {str(claim)[:80]}") from error
    if not whole or not begin <= end <= body or math.prod(shape) * bits != 8 * (end - begin):
        raise ValueError(
            f"tensor {name[:80]!r} claims {claim['dtype']}{str(shape)[:80]} at bytes {begin} to "
            f"{end} of {body}"
        )
