"""One codec between pydantic models, Flower's RecordDicts and files.

Messages, client states and checkpoints are declared as subclasses of ``Records``. The sender
validates a payload by constructing it, the receiver by unpacking it. Axis names of jaxtyping bind
within one payload: in ``x: Float[Tensor, "n d"]; y: Float[Tensor, "n C"]`` both n are the same.

A payload is one array for each dtype (``arrays.py``) and one JSON schema that assigns the
pieces of the arrays to fields (``schema.py``). A message holds the arrays in ``.npy`` form and the
compressed schema. A file is a safetensors file of the same arrays. Names and headers of a state
dict of two hundred small tensors thus take one kilobyte in a message instead of thirty.
"""

import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import jaxtyped
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from common.errors import first_line, invalid
from common.exchange.records.arrays import (
    Numbers,
    ReceivedArray,
    body_bytes,
    flatten,
    from_file,
    from_npy,
    take,
    to_file,
    to_npy,
)
from common.exchange.records.schema import (
    MAX_TENSORS,
    MAX_TENSORS_KEPT,
    MAX_VALUES,
    MAX_VALUES_KEPT,
    check_count,
    dump,
    from_json,
    inflate,
    parse,
    to_json,
)
from common.files import Damaged

StateDict = dict[str, Tensor]
"""Names to tensors, including buffers, as in ``nn.Module.state_dict()``."""


class Records(BaseModel):
    """A payload, whose fields are numbers, strings, tensors, and nested lists and dicts of these.

    Raises ``ValueError`` for a field that is missing, unknown or of another type, and for axes that
    do not match those of another field. ``unpack`` and ``load`` make it one line.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", frozen=True, strict=True
    )

    kind: ClassVar[str]
    values: ClassVar[int] = MAX_VALUES
    """Maximum number of values other than tensors in a message of this kind."""

    omitted: ClassVar[frozenset[str]] = frozenset()
    """Fields that a payload leaves out while they are 0 or empty."""

    def __init_subclass__(cls, kind: str = "") -> None:
        """Set ``kind``, the name of the payload in messages and files.

        It stays the same when the class is renamed. By default it is module and class.
        """
        super().__init_subclass__()
        cls.kind = kind or f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"

    def __init__(self, **fields: object) -> None:
        with jaxtyped("context"):
            super().__init__(**fields)

    def pack(self) -> RecordDict:
        """Return a RecordDict with the records ``arrays`` (by dtype) and ``fields``."""
        schema, arrays = self._split()
        npy = {name: to_npy(name, numbers) for name, numbers in arrays.items()}
        fields = ConfigRecord({"kind": self.kind, "skeleton": zlib.compress(schema, 6)})
        return RecordDict({"arrays": ArrayRecord(npy), "fields": fields})

    @classmethod
    def unpack(cls, content: RecordDict) -> Self:
        """Return the payload from ``pack``; raise a one-line ``ValueError`` if it is no ``cls``."""
        fields, arrays = content.get("fields"), content.get("arrays")
        config = fields if isinstance(fields, ConfigRecord) else {}
        kind, compressed = config.get("kind"), config.get("skeleton")
        if not (
            isinstance(arrays, ArrayRecord)
            and isinstance(kind, str)
            and isinstance(compressed, bytes)
        ):
            shown = [name[:20] for name in sorted(content)[:5]]
            raise ValueError(f"not a {cls.kind} payload: records {shown}")
        if kind != cls.kind:
            raise ValueError(f"payload is a {kind[:80]!r}, expected a {cls.kind!r}")
        check_count(schema := inflate(compressed), cls.values)
        pool = {name: from_npy(name, array) for name, array in arrays.items()}
        return cls._join(schema, pool, MAX_TENSORS, cls.values)

    def to_bytes(self) -> bytes:
        """Return the payload as the content of a safetensors file."""
        return b"".join(self.pieces())

    def pieces(self) -> list[bytes | memoryview]:
        """Return ``to_bytes`` in pieces; the pieces share memory with the payload's tensors."""
        return to_file(self.kind, *self._split())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the payload in a file; raise ``Damaged`` with the path if it cannot be read."""
        try:
            kind, schema, pool = from_file(path)
            if kind != cls.kind:
                raise ValueError(f"is a {kind[:80]!r}, expected a {cls.kind!r}")
            return cls._join(schema, pool, MAX_TENSORS_KEPT, MAX_VALUES_KEPT)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} cannot be read: {first_line(error)}") from error

    def _split(self) -> tuple[bytes, dict[str, Numbers]]:
        """Return the schema and the numbers by dtype."""
        leaves: list[tuple[str, Tensor]] = []
        fields = {name: value for name, value in self if name not in self.omitted or _given(value)}
        return dump(to_json(fields, "", leaves)), flatten(leaves)

    @classmethod
    def _join(cls, schema: bytes, pool: dict[str, ReceivedArray], most: int, values: int) -> Self:
        """Return the payload from ``_split``: at most ``most`` tensors, ``values`` other values."""
        try:
            fields = from_json(parse(schema), partial(take, pool), most, values)
            if not isinstance(fields, dict):
                raise ValueError(f"{cls.kind}: malformed schema: it is no JSON object")
            if unknown := next((name for name in fields if name not in cls.model_fields), None):
                raise ValueError(f"{cls.kind}: field {str(unknown)[:40]!r}: it is unknown")
            built = cls(**fields)
        except ValidationError as error:
            raise ValueError(f"{cls.kind}: {invalid(error)}") from error
        except (TypeError, RecursionError) as error:
            raise ValueError(f"{cls.kind}: malformed schema: {first_line(error)}") from error
        if rest := {name: array.left() for name, array in pool.items() if array.left()}:
            raise ValueError(f"{cls.kind}: the payload has numbers that belong to no field: {rest}")
        return built


def _given(value: object) -> bool:
    """Return whether an omitted field has another value than the empty one."""
    return isinstance(value, Tensor) or bool(value)


def count_bytes(content: RecordDict) -> int:
    """Return the bytes of a payload: arrays with headers, values and keys, equal on all runtimes.

    Flower's own count raises an error for an empty text, which a client may send.
    """
    return sum(
        len(name) + sum(len(key) + _size(value) for key, value in record.items())
        for name, record in content.items()
    )


def _size(value: object) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def array_bytes(content: RecordDict) -> int:
    """Return the bytes of the numbers in the arrays of a payload, without headers."""
    return sum(
        body_bytes(array) for record in content.array_records.values() for array in record.values()
    )


def tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the path and the value of every tensor in a payload, depth first."""
    leaves: list[tuple[str, Tensor]] = []
    to_json(dict(value) if isinstance(value, BaseModel) else value, "", leaves)
    yield from leaves
