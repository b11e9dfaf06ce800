"""JSON schema of a payload: all values except the tensors' numbers, and the place of each tensor.

Treat every incoming byte as hostile. Text is inflated only up to a limit, and integers have at most
19 digits. Nesting, the number of tensors and the number of other values are limited. A shape is
checked before memory is allocated for it. Each error is a one-line ``ValueError``.
"""

import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from pydantic import BaseModel
from torch import Tensor

from common.errors import first_line

MAX_BYTES = 4 * 2**20
"""A skeleton that inflates beyond this is refused before it takes the memory. The skeleton of a
DenseNet-121, the longest here, has 40 kB."""
MAX_DEPTH = 16
MAX_TENSORS, MAX_TENSORS_KEPT = 20_000, 1_000_000
"""Of a message; of a file, where the models of many clients may lie together."""
MAX_VALUES, MAX_VALUES_KEPT = 50_000, 100_000_000
"""Likewise of objects, lists, numbers and words that are no part of a tensor's claim. A message
that holds more says so itself (``Records.values``)."""
MAX_AXES = 8
MAX_NUMBERS = 2**40
"""Of one tensor, counting an axis of length 0 as 1."""
DIGITS = 19

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16),
        torch.bool,
    )
}

PLAIN = {int, str, bool}  #: what JSON holds as it is

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

Leaf = Callable[[str, list[int]], Tensor]
"""Supplies the tensor of a dtype and shape."""


def to_json(value: object, path: str, leaves: list[tuple[str, Tensor]]) -> Json:
    """Replace every tensor below ``value`` by its dtype and shape, and collect it."""
    if isinstance(value, Tensor):
        leaves.append((path, value))
        return {"~tensor": [dtype_name(value.dtype), *value.shape]}
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict):
        lifted = {str(k): to_json(v, f"{path}.{k}".lstrip("."), leaves) for k, v in value.items()}
        return {"~int": lifted} if any(isinstance(k, int) for k in value) else lifted
    if isinstance(value, list | tuple):
        if {*map(type, value)} <= PLAIN:
            return list(value)
        return [to_json(v, f"{path}.{i}", leaves) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"~float": str(value)}
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise TypeError(f"{path!r} is a {type(value).__name__}, which no payload holds")


def from_json(
    value: Json, leaf: Leaf, most: int = MAX_TENSORS, values: int = MAX_VALUES_KEPT
) -> object:
    """Inverse of ``to_json``: ``leaf`` supplies the tensors, ``most`` of them at most, among at
    most ``values`` other values.
    """
    asked, told = itertools.count(1), itertools.count(1)

    def counted(dtype: str, shape: list[int]) -> Tensor:
        if next(asked) > most:
            raise ValueError(f"the payload's skeleton has more than {most} tensors")
        return leaf(dtype, shape)

    def count() -> None:
        if next(told) > values:
            raise ValueError(_too_many(values))

    return _lower(value, "", counted, count, 0)


def _lower(value: Json, path: str, leaf: Leaf, count: Callable[[], None], depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"the skeleton is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict) and "~tensor" in value:
        return leaf(*_claim(value["~tensor"], path))
    count()
    if isinstance(value, list):
        if depth < MAX_DEPTH and {*map(type, value)} <= PLAIN:
            for _ in value:
                count()
            return value
        return [_lower(v, f"{path}.{i}", leaf, count, depth + 1) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "~float" in value:
        name = value["~float"]
        if not isinstance(name, str) or name not in ("nan", "inf", "-inf"):
            raise ValueError(f"{path[:80]!r} is no number: {str(name)[:40]!r}")
        return float(name)
    items: Iterable[tuple[int | str, Json]] = value.items()
    if "~int" in value:
        inner = value["~int"]
        if not isinstance(inner, dict):
            raise ValueError(f"{path[:80]!r} has no keys: {str(inner)[:40]!r}")
        items = [(_key(k), v) for k, v in inner.items()]
    return {k: _lower(v, f"{path}.{k}".lstrip("."), leaf, count, depth + 1) for k, v in items}


def _claim(claim: Json, path: str) -> tuple[str, list[int]]:
    """The dtype and shape that a tensor claims, if there can be such a tensor."""
    if not isinstance(claim, list) or not claim:
        raise ValueError(f"tensor {path[:80]!r} claims no dtype and shape")
    dtype, *sizes = claim
    shape = [n for n in sizes if type(n) is int and n >= 0]
    if (
        not isinstance(dtype, str)
        or dtype not in DTYPES
        or len(shape) != len(sizes)
        or len(shape) > MAX_AXES
        or math.prod(max(n, 1) for n in shape) > MAX_NUMBERS
    ):
        shown = f"claims dtype {str(dtype)[:20]!r} and shape {str(sizes)[:80]}"
        raise ValueError(f"tensor {path[:80]!r} {shown}")
    return dtype, shape


def _key(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a key has {len(text)} digits, at most {DIGITS} are allowed")
    return int(text)


def check_count(text: bytes, values: int) -> None:
    """Raise ``ValueError`` if a message's skeleton cannot hold so few values, before it is read.

    Every value of JSON but the first stands behind a ``[``, ``{``, ``,`` or the name of a member; a
    tensor's claim has at most ``MAX_AXES`` + 3 of them.
    """
    if sum(map(text.count, (b"[", b"{", b","))) > values + (MAX_AXES + 3) * MAX_TENSORS:
        raise ValueError(_too_many(values))


def _too_many(values: int) -> str:
    return f"the payload's skeleton has more than {values} values that are no tensors"


def inflate(squeezed: bytes) -> bytes:
    """Return the skeleton that a message holds compressed, of at most ``MAX_BYTES``."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(squeezed, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"the payload's skeleton is not zlib data: {error}") from error
    if inflater.unconsumed_tail:
        raise ValueError(f"the payload's skeleton exceeds {MAX_BYTES} bytes")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("the payload's skeleton is not zlib data: it is cut short or goes on")
    return text


_compact = json.JSONEncoder(separators=(",", ":")).encode


def dump(skeleton: Json) -> bytes:
    """A skeleton as JSON text."""
    return _compact(skeleton).encode()


def parse(text: bytes, what: str = "the payload's skeleton") -> Json:
    """What JSON ``text`` (UTF-8) says; ``ValueError`` of one line, which begins with ``what``."""
    try:
        found: Json = json.loads(text.decode(), parse_int=_integer, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {first_line(error)}") from error
    return found


def _integer(text: str) -> int:
    if len(text) > DIGITS + 1:
        raise ValueError(f"an integer has {len(text)} digits, at most {DIGITS} are allowed")
    return int(text)


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``; ``ValueError`` for a dtype that cannot travel."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name} cannot travel; allowed: {sorted(DTYPES)}")
    return name
