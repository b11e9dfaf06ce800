"""Records: one pydantic model <-> one Flower RecordDict <-> one safetensors file.

The wire, the client's memory and the server's checkpoints are all declared once, as subclasses of
``Records``. The sender validates by constructing, the receiver by unpacking. Axis names of
jaxtyping bind within one payload: in ``x: Float[Tensor, "n d"]; y: Float[Tensor, "n C"]`` both n
are the same.

On the wire a payload is one flat array for each dtype, in standard ``.npy`` form (``flat.py``), and
one compressed JSON skeleton that says which field each piece of it is (``skeleton.py``). A state
dict of two hundred small tensors then costs a kilobyte of names and headers, not thirty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import jaxtyped
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from common.records.arrays import Flat, body_bytes, flatten, take
from common.records.file_header import check_header
from common.records.skeleton import (
    Leaf,
    dtype_name,
    first_line,
    inflate,
    lift,
    lower,
    parse,
    squeeze,
)

StateDict = dict[str, Tensor]
"""Names to tensors, buffers included, as ``nn.Module.state_dict()`` gives them."""

T = TypeVar("T", bound="Records")


class Records(BaseModel):
    """A payload. Fields are numbers, strings, tensors, and lists and dicts of these, nested.

    Raises ``ValueError`` (pydantic's or ours, always one line through ``unpack`` and ``load``) for
    a field that is missing, unknown, of another type, or whose axes disagree with another field's.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", frozen=True, strict=True
    )

    kind: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.kind = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"

    def __init__(self, **fields: Any) -> None:
        with jaxtyped("context"):
            super().__init__(**fields)

    def pack(self) -> RecordDict:
        """The payload as a RecordDict: record ``arrays`` (flat, by dtype) and record ``fields``."""
        leaves: list[tuple[str, Tensor]] = []
        skeleton = lift(dict(self), "", leaves)
        fields = ConfigRecord({"kind": self.kind, "skeleton": squeeze(skeleton)})
        return RecordDict({"arrays": ArrayRecord(flatten(leaves)), "fields": fields})

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
        skeleton = parse(inflate(squeezed))
        pool = {name: Flat(name, array) for name, array in arrays.items()}
        built = _build(cls, skeleton, lambda dtype, shape, _: take(pool, dtype, shape))
        if rest := {name: flat.left() for name, flat in pool.items() if flat.left()}:
            raise ValueError(f"{cls.kind}: the payload has numbers no field asks for: {rest}")
        return built

    def to_bytes(self) -> bytes:
        """The payload as a safetensors file: tensors by field path, skeleton in the metadata."""
        leaves: list[tuple[str, Tensor]] = []
        skeleton = lift(dict(self), "", leaves)
        tensors = {path: leaf.detach().cpu().contiguous().clone() for path, leaf in leaves}
        return save(tensors, metadata={"kind": self.kind, "skeleton": json.dumps(skeleton)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``to_bytes`` wrote; ``ValueError`` naming the file if it is damaged."""
        try:
            check_header(path)
            with safe_open(path, framework="pt") as file:
                meta = file.metadata() or {}
                if meta.get("kind") != cls.kind:
                    raise ValueError(f"is a {meta.get('kind')!r}, expected a {cls.kind!r}")
                skeleton = parse(meta["skeleton"].encode())
                return _build(cls, skeleton, partial(_stored, file))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise ValueError(f"{path} cannot be read: {first_line(error)}") from error


def count_bytes(content: RecordDict) -> int:
    """Bytes of a payload: arrays with their headers, values and keys; the same on every runtime.

    Flower's own count raises on an empty text, which a client may well send.
    """
    return sum(
        len(name) + sum(len(key) + _size(value) for key, value in record.items())
        for name, record in content.items()
    )


def _size(value: Any) -> int:
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


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside a payload, with its path, depth first."""
    leaves: list[tuple[str, Tensor]] = []
    lift(dict(value) if isinstance(value, BaseModel) else value, "", leaves)
    yield from leaves


def _stored(file: Any, dtype: str, shape: list[int], name: str) -> Tensor:
    """The tensor ``name`` of an open safetensors file, if it is what the skeleton says."""
    tensor: Tensor = file.get_tensor(name)
    if dtype_name(tensor.dtype) != dtype or list(tensor.shape) != shape:
        raise ValueError(f"tensor {name!r} is not the {dtype}{shape} that it should be")
    return tensor


def _build(cls: type[T], skeleton: Any, leaf: Leaf) -> T:
    try:
        return cls(**lower(skeleton, leaf))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise ValueError(f"{cls.kind}: field {where!r}: {first['msg']}") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{cls.kind}: malformed skeleton: {first_line(error)}") from error
