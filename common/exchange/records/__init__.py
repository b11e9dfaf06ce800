"""Records: one pydantic model <-> one Flower RecordDict <-> one file, by one codec.

The wire, the client's memory and the server's checkpoints are all declared once, as subclasses of
``Records``. The sender validates by constructing, the receiver by unpacking. Axis names of
jaxtyping bind within one payload: in ``x: Float[Tensor, "n d"]; y: Float[Tensor, "n C"]`` both n
are the same.

A payload is one flat array for each dtype (``arrays.py``) and one JSON skeleton that says which
field each piece of it is (``schema.py``). A message holds the arrays in ``.npy`` form and the
skeleton compressed, a file is a safetensors file of the same arrays. A state dict of
two hundred small tensors then costs a kilobyte of names and headers in a message, not thirty.
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
    Flat,
    Numbers,
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
"""Names to tensors, buffers included, as ``nn.Module.state_dict()`` gives them."""


class Records(BaseModel):
    """A payload. Fields are numbers, strings, tensors, and lists and dicts of these, nested.

    Raises ``ValueError`` (pydantic's or ours, always one line through ``unpack`` and ``load``) for
    a field that is missing, unknown, of another type, or whose axes disagree with another field's.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", frozen=True, strict=True
    )

    kind: ClassVar[str]
    values: ClassVar[int] = MAX_VALUES
    """How many values that are no tensors a message of this kind may hold."""

    def __init_subclass__(cls, kind: str = "") -> None:
        """``kind``: the name of the payload in messages and files, which renaming does not change.

        By default the module and the class.
        """
        super().__init_subclass__()
        cls.kind = kind or f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"

    def __init__(self, **fields: object) -> None:
        with jaxtyped("context"):
            super().__init__(**fields)

    def pack(self) -> RecordDict:
        """The payload as a RecordDict: record ``arrays`` (flat, by dtype) and record ``fields``."""
        skeleton, arrays = self._apart()
        flat = {name: to_npy(name, numbers) for name, numbers in arrays.items()}
        fields = ConfigRecord({"kind": self.kind, "skeleton": zlib.compress(skeleton, 6)})
        return RecordDict({"arrays": ArrayRecord(flat), "fields": fields})

    @classmethod
    def unpack(cls, content: RecordDict) -> Self:
        """Inverse of ``pack``; ``ValueError`` in one line for anything that is not a ``cls``."""
        fields, arrays = content.get("fields"), content.get("arrays")
        said = fields if isinstance(fields, ConfigRecord) else {}
        kind, squeezed = said.get("kind"), said.get("skeleton")
        if not (
            isinstance(arrays, ArrayRecord)
            and isinstance(kind, str)
            and isinstance(squeezed, bytes)
        ):
            shown = [name[:20] for name in sorted(content)[:5]]
            raise ValueError(f"not a {cls.kind} payload: records {shown}")
        if kind != cls.kind:
            raise ValueError(f"payload is a {kind[:80]!r}, expected a {cls.kind!r}")
        check_count(skeleton := inflate(squeezed), cls.values)
        pool = {name: from_npy(name, array) for name, array in arrays.items()}
        return cls._together(skeleton, pool, MAX_TENSORS, cls.values)

    def to_bytes(self) -> bytes:
        """The payload as a safetensors file."""
        return b"".join(self.pieces())

    def pieces(self) -> list[bytes | memoryview]:
        """``to_bytes`` in pieces, of which the numbers are the payload's own, not copied."""
        return to_file(self.kind, *self._apart())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``to_bytes`` wrote; ``Damaged``, naming the file, if it cannot be read."""
        try:
            kind, skeleton, pool = from_file(path)
            if kind != cls.kind:
                raise ValueError(f"is a {kind[:80]!r}, expected a {cls.kind!r}")
            return cls._together(skeleton, pool, MAX_TENSORS_KEPT, MAX_VALUES_KEPT)
        except (OSError, ValueError) as error:
            raise Damaged(f"{path} cannot be read: {first_line(error)}") from error

    def _apart(self) -> tuple[bytes, dict[str, Numbers]]:
        """Skeleton and numbers."""
        leaves: list[tuple[str, Tensor]] = []
        return dump(to_json(dict(self), "", leaves)), flatten(leaves)

    @classmethod
    def _together(cls, skeleton: bytes, pool: dict[str, Flat], most: int, values: int) -> Self:
        """Inverse of ``_apart``, for ``most`` tensors and ``values`` other values at most."""
        try:
            fields = from_json(parse(skeleton), partial(take, pool), most, values)
            if not isinstance(fields, dict):
                raise ValueError(f"{cls.kind}: malformed skeleton: it is no JSON object")
            if unknown := next((name for name in fields if name not in cls.model_fields), None):
                raise ValueError(f"{cls.kind}: field {str(unknown)[:40]!r}: it is unknown")
            built = cls(**fields)
        except ValidationError as error:
            raise ValueError(f"{cls.kind}: {invalid(error)}") from error
        except (TypeError, RecursionError) as error:
            raise ValueError(f"{cls.kind}: malformed skeleton: {first_line(error)}") from error
        if rest := {name: flat.left() for name, flat in pool.items() if flat.left()}:
            raise ValueError(f"{cls.kind}: the payload has numbers no field asks for: {rest}")
        return built


def count_bytes(content: RecordDict) -> int:
    """Bytes of a payload: arrays with their headers, values and keys; the same on every runtime.

    Flower's own count raises on an empty text, which a client may well send.
    """
    return sum(
        len(name) + sum(len(key) + _size(value) for key, value in record.items())
        for name, record in content.items()
    )


def _size(value: object) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(_size(each) for each in value)
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def array_bytes(content: RecordDict) -> int:
    """Bytes of the numbers alone in the arrays of a payload, whatever the arrays claim to be."""
    return sum(
        body_bytes(array) for record in content.array_records.values() for array in record.values()
    )


def tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside a payload, with its path, depth first."""
    leaves: list[tuple[str, Tensor]] = []
    to_json(dict(value) if isinstance(value, BaseModel) else value, "", leaves)
    yield from leaves
