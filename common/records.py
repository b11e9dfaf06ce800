"""Records: one pydantic model <-> one Flower RecordDict <-> one safetensors file.

The wire, the client's memory and the server's checkpoints are all declared once, as subclasses of
``Records``. The sender validates by constructing, the receiver by unpacking. Axis names of
jaxtyping bind within one payload: in ``x: Float[Tensor, "n d"]; y: Float[Tensor, "n C"]`` both n
are the same.

On the wire a payload is one flat array for each dtype, in standard ``.npy`` form, and one
compressed JSON skeleton that says which field each piece of it is. A state dict of two hundred
small tensors then costs a kilobyte of names and headers, not thirty.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from jaxtyping import jaxtyped
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

StateDict = dict[str, Tensor]
"""Names to tensors, buffers included, as ``nn.Module.state_dict()`` gives them."""

MAX_SKELETON_BYTES = 32 * 2**20
"""A skeleton that inflates beyond this is refused before it takes the memory."""

T = TypeVar("T", bound="Records")

_TENSOR, _INT_KEYS, _FLOAT = "~tensor", "~int", "~float"
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16),
        torch.bool,
    )
}


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
        skeleton = _lift(dict(self), "", leaves)
        flat: dict[str, list[Tensor]] = {}
        for _, leaf in leaves:
            flat.setdefault(_name(leaf.dtype), []).append(leaf.detach().reshape(-1).cpu())
        arrays = {name: Array(_to_numpy(torch.cat(parts))) for name, parts in flat.items()}
        text = json.dumps(skeleton, separators=(",", ":")).encode()
        fields = ConfigRecord({"kind": self.kind, "skeleton": zlib.compress(text, 6)})
        return RecordDict({"arrays": ArrayRecord(arrays), "fields": fields})

    @classmethod
    def unpack(cls, content: RecordDict) -> Self:
        """Inverse of ``pack``; ``ValueError`` in one line for anything that is not a ``cls``."""
        try:
            fields, arrays = content["fields"], content["arrays"]
            assert isinstance(fields, ConfigRecord) and isinstance(arrays, ArrayRecord)
            kind, squeezed = fields["kind"], fields["skeleton"]
            assert isinstance(squeezed, bytes)
        except (KeyError, AssertionError) as error:
            raise ValueError(f"not a {cls.kind} payload: records {sorted(content)}") from error
        if kind != cls.kind:
            raise ValueError(f"payload is a {kind!r}, expected a {cls.kind!r}")
        skeleton = _parse(_inflate(squeezed))
        pool = {name: _Flat(name, array) for name, array in arrays.items()}
        built = _build(cls, skeleton, lambda dtype, shape, _: _take(pool, dtype, shape))
        if rest := {name: flat.left() for name, flat in pool.items() if flat.left()}:
            raise ValueError(f"{cls.kind}: the payload has numbers no field asks for: {rest}")
        return built

    def to_bytes(self) -> bytes:
        """The payload as a safetensors file: tensors by field path, skeleton in the metadata."""
        leaves: list[tuple[str, Tensor]] = []
        skeleton = _lift(dict(self), "", leaves)
        tensors = {path: leaf.detach().cpu().contiguous().clone() for path, leaf in leaves}
        return save(tensors, metadata={"kind": self.kind, "skeleton": json.dumps(skeleton)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``to_bytes`` wrote; ``ValueError`` naming the file if it is damaged."""
        try:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata() or {}
                if meta.get("kind") != cls.kind:
                    raise ValueError(f"is a {meta.get('kind')!r}, expected a {cls.kind!r}")
                skeleton = _parse(meta["skeleton"].encode())
                return _build(cls, skeleton, lambda _d, _s, name: file.get_tensor(name))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise ValueError(f"{path} cannot be read: {_first_line(error)}") from error


def count_bytes(content: RecordDict) -> int:
    """Bytes of a payload: arrays with their headers, values and keys; the same on every runtime."""
    return sum(len(name) + record.count_bytes() for name, record in content.items())


def array_bytes(content: RecordDict) -> int:
    """Bytes of the numbers alone in the arrays of a payload."""
    return sum(
        int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
        for record in content.array_records.values()
        for array in record.values()
    )


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside a payload, with its path, depth first."""
    leaves: list[tuple[str, Tensor]] = []
    _lift(dict(value) if isinstance(value, BaseModel) else value, "", leaves)
    yield from leaves


def _lift(value: Any, path: str, leaves: list[tuple[str, Tensor]]) -> Any:
    """Replace every tensor below ``value`` by its dtype and shape, and collect it."""
    if isinstance(value, Tensor):
        leaves.append((path, value))
        return {_TENSOR: [_name(value.dtype), *value.shape]}
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict):
        lifted = {str(k): _lift(v, f"{path}.{k}".lstrip("."), leaves) for k, v in value.items()}
        return {_INT_KEYS: lifted} if any(isinstance(k, int) for k in value) else lifted
    if isinstance(value, list | tuple):
        return [_lift(v, f"{path}.{i}", leaves) for i, v in enumerate(value)]
    if isinstance(value, float) and not np.isfinite(value):
        return {_FLOAT: str(value)}
    return value


def _lower(value: Any, path: str, leaf: Any) -> Any:
    """Inverse of ``_lift``: ``leaf(dtype, shape, path)`` supplies the tensors."""
    if isinstance(value, list):
        return [_lower(v, f"{path}.{i}", leaf) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        dtype, *shape = value[_TENSOR]
        if dtype not in _DTYPES or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"tensor {path!r} claims dtype {dtype!r} and shape {shape}")
        return leaf(dtype, shape, path)
    if _FLOAT in value:
        return float(value[_FLOAT])
    if _INT_KEYS in value:
        items = {int(k): v for k, v in value[_INT_KEYS].items()}
        return {k: _lower(v, f"{path}.{k}".lstrip("."), leaf) for k, v in items.items()}
    return {k: _lower(v, f"{path}.{k}".lstrip("."), leaf) for k, v in value.items()}


def _build(cls: type[T], skeleton: Any, leaf: Any) -> T:
    try:
        return cls(**_lower(skeleton, "", leaf))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{cls.kind}: field {where!r}: {first['msg']}") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{cls.kind}: malformed skeleton: {_first_line(error)}") from error


def _inflate(squeezed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(squeezed, MAX_SKELETON_BYTES)
    except zlib.error as error:
        raise ValueError(f"the payload's skeleton is not zlib data: {error}") from error
    if inflater.unconsumed_tail:
        raise ValueError(f"the payload's skeleton exceeds {MAX_SKELETON_BYTES} bytes")
    return text


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the payload's skeleton is not JSON: {_first_line(error)}") from error


class _Flat:
    """One flat array of the wire and how much of it is handed out."""

    def __init__(self, name: str, array: Array) -> None:
        self.name, self.at = name, 0
        if name not in _DTYPES:
            raise ValueError(f"array {name!r} is of no known dtype; known: {sorted(_DTYPES)}")
        wire = "uint16" if name == "bfloat16" else name
        stream = io.BytesIO(array.data)
        try:
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError("not version 1.0")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        except ValueError as error:
            raise ValueError(f"array {name!r} is not .npy data: {_first_line(error)}") from error
        body = len(array.data) - stream.tell()
        if len(shape) != 1 or dtype != np.dtype(wire) or shape[0] * dtype.itemsize != body:
            raise ValueError(f"array {name!r} claims {dtype}{list(shape)} in {body} bytes")
        numbers = np.frombuffer(array.data, dtype=dtype, offset=stream.tell()).copy()
        self.numbers = torch.from_numpy(numbers).view(_DTYPES[name])

    def left(self) -> int:
        return self.numbers.numel() - self.at


def _take(pool: dict[str, _Flat], dtype: str, shape: list[int]) -> Tensor:
    size = 1
    for n in shape:
        size *= n
    flat = pool.get(dtype)
    if flat is None:
        if size == 0:
            return torch.empty(shape, dtype=_DTYPES[dtype])
        raise ValueError(f"a field asks for {dtype}{shape}, but no {dtype} array came")
    if size > flat.left():
        raise ValueError(
            f"a field asks for {dtype}{shape}, but only {flat.left()} numbers are left"
        )
    flat.at += size
    return flat.numbers[flat.at - size : flat.at].view(shape)


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"dtype {name} cannot travel; allowed: {sorted(_DTYPES)}")
    return name


def _to_numpy(flat: Tensor) -> Any:
    return (flat.view(torch.uint16) if flat.dtype == torch.bfloat16 else flat).numpy()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
