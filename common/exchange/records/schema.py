"""JSON schema of a payload: all values except the tensors' numbers, and the place of each tensor.

JSON has no tensors, no integer keys, no NaN and no infinity. Each becomes an object with one key:

- ``{"~tensor": [dtype, *shape]}``: the next tensor of this dtype in the payload's arrays.
- ``{"~int": {"3": …}}``: a dict with integer keys.
- ``{"~float": "nan"}``, ``"inf"`` or ``"-inf"``.

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
"""Largest inflated schema. The longest schema of a built-in model, DenseNet-121, has 40 kB."""
MAX_DEPTH = 16
"""Maximum nesting of lists and objects."""
MAX_TENSORS, MAX_TENSORS_KEPT = 20_000, 1_000_000
"""Maximum number of tensors in a message, and in a file, which may hold many clients' models."""
MAX_VALUES, MAX_VALUES_KEPT = 50_000, 100_000_000
"""Maximum number of other values (objects, lists, numbers, strings) in a message and in a file. A
kind of message with more values sets its own limit (``Records.values``)."""
MAX_AXES = 8
"""Maximum number of axes of one tensor."""
MAX_NUMBERS = 2**40
"""Maximum number of entries of one tensor, where an axis of length 0 counts as 1."""
DIGITS = 19
"""Maximum length of an integer; 64-bit integers have at most 19 digits. Python takes quadratic time
for long ones."""

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16),
        torch.bool,
    )
}

PLAIN = {int, str, bool}  #: types that JSON represents directly

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

Take = Callable[[str, list[int]], Tensor]
"""Function that takes the next tensor of a dtype and a shape from the payload's arrays."""


def to_json(value: object, path: str, leaves: list[tuple[str, Tensor]]) -> Json:
    """Return ``value`` as JSON, with dtype and shape in place of each tensor.

    ``leaves`` collects the tensors in the order in which ``from_json`` takes them, each with its
    path. ``path``: names and indices that lead to ``value``, joined by dots, for messages. Raises
    ``TypeError`` for a type that a payload cannot hold.
    """
    if isinstance(value, Tensor):
        leaves.append((path, value))
        return {"~tensor": [dtype_name(value.dtype), *value.shape]}
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict):
        items = {str(k): to_json(v, f"{path}.{k}".lstrip("."), leaves) for k, v in value.items()}
        return {"~int": items} if any(isinstance(k, int) for k in value) else items
    if isinstance(value, list | tuple):
        if {*map(type, value)} <= PLAIN:  # without recursion, for long lists
            return list(value)
        return [to_json(v, f"{path}.{i}", leaves) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"~float": str(value)}
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise TypeError(f"{path!r} is a {type(value).__name__}, which a payload cannot hold")


def from_json(
    value: Json, take: Take, max_tensors: int = MAX_TENSORS, values: int = MAX_VALUES_KEPT
) -> object:
    """Return the value that ``to_json`` encoded, with tensors from ``take``.

    Raises ``ValueError`` for more than ``max_tensors`` tensors or ``values`` other values.
    """
    tensors, others = itertools.count(1), itertools.count(1)

    def take_counted(dtype: str, shape: list[int]) -> Tensor:
        if next(tensors) > max_tensors:
            raise ValueError(f"the payload's schema has more than {max_tensors} tensors")
        return take(dtype, shape)

    def count() -> None:
        if next(others) > values:
            raise ValueError(_too_many(values))

    return _decode(value, "", take_counted, count, 0)


def _decode(value: Json, path: str, take: Take, count: Callable[[], None], depth: int) -> object:
    """Return the value at ``path``; ``count`` is called once for each value that is no tensor."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict) and "~tensor" in value:
        return take(*_checked_claim(value["~tensor"], path))
    count()
    if isinstance(value, list):
        if depth < MAX_DEPTH and {*map(type, value)} <= PLAIN:  # as in ``to_json``
            for _ in value:
                count()
            return value
        return [_decode(v, f"{path}.{i}", take, count, depth + 1) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    # An object: one of the replacements of JSON's lacking values, or a dict with text keys.
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
    return {k: _decode(v, f"{path}.{k}".lstrip("."), take, count, depth + 1) for k, v in items}


def _checked_claim(claim: Json, path: str) -> tuple[str, list[int]]:
    """Return dtype and shape that the sender claims for a tensor.

    Raises ``ValueError`` if they are invalid or too large. ``path``: the tensor's, for messages.
    """
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
    """Raise ``ValueError`` if a message's schema must have more than ``values`` values.

    The check runs before JSON is parsed. Every value except the first follows a ``[``, ``{``, ``,``
    or the name of a member; the entry of a tensor has at most ``MAX_AXES`` + 3 of them.
    """
    if sum(map(text.count, (b"[", b"{", b","))) > values + (MAX_AXES + 3) * MAX_TENSORS:
        raise ValueError(_too_many(values))


def _too_many(values: int) -> str:
    return f"the payload's schema has more than {values} values other than tensors"


def inflate(compressed: bytes) -> bytes:
    """Return a message's schema, decompressed to at most ``MAX_BYTES``."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(compressed, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"the payload's schema is not zlib data: {error}") from error
    if inflater.unconsumed_tail:
        raise ValueError(f"the payload's schema exceeds {MAX_BYTES} bytes")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("the payload's schema is not zlib data: it is cut short or too long")
    return text


_compact = json.JSONEncoder(separators=(",", ":")).encode


def dump(schema: Json) -> bytes:
    """Return a schema as JSON text."""
    return _compact(schema).encode()


def parse(text: bytes, name: str = "the payload's schema") -> Json:
    """Return the value of JSON ``text`` (UTF-8); a one-line ``ValueError`` begins with ``name``."""
    try:
        value: Json = json.loads(text.decode(), parse_int=_integer, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {first_line(error)}") from error
    return value


def _integer(text: str) -> int:
    if len(text) > DIGITS + 1:  # one more for the sign
        raise ValueError(f"an integer has {len(text)} digits, at most {DIGITS} are allowed")
    return int(text)


def _constant(name: str) -> float:
    """Refuse ``NaN``, ``Infinity`` and ``-Infinity``, which Python reads beyond JSON."""
    raise ValueError(f"{name} is no JSON number")


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``; raise ``ValueError`` for an unsupported dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not supported in payloads; allowed: {sorted(DTYPES)}")
    return name
