"""Base class of the run config's tables, and the types of settings.

A setting is a field with a default, a docstring and marks (``common/settings/marks.py``).
``fedmosaic list settings`` and the defaults for Flower in ``pyproject.toml`` are generated from
these fields.
"""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from common.settings.marks import Value as Value

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
AtLeastOne = Annotated[int, Field(ge=1)]


def kebab(name: str) -> str:
    """Return a field's name in the run config: ``batch_size`` becomes ``batch-size``."""
    return name.replace("_", "-")


def value_kind(field: FieldInfo) -> type[Value] | None:
    """Return the type (bool, int, float or str) of a setting's values; None for other types."""
    annotation = field.annotation
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        annotation = type(get_args(annotation)[0])
    kinds: dict[object, type[Value]] = {kind: kind for kind in (bool, int, float, str)}
    return kinds.get(annotation)


def from_text(text: str, kind: type[Value]) -> Value:
    """Return the value of type ``kind`` that ``text`` writes; texts may have quotes around them.

    Raises ``KeyError`` for a truth value and ``ValueError`` for a number if ``text`` is none.
    """
    if kind is bool:
        return {"true": True, "false": False}[text.lower()]
    return text.strip("\"'") if kind is str else kind(text)


class Section(BaseModel):
    """A table of the run config. Field ``batch_size`` is the key ``batch-size``."""

    model_config = ConfigDict(
        alias_generator=kebab,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


def keys_of(table: str, kind: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the key in a flat run config and the field of each setting of the table ``table``.

    The table of the top level is ``""``.
    """
    for name, field in kind.model_fields.items():
        yield f"{table}.{kebab(name)}".lstrip("."), field


def meaning(kind: type[Section], name: str) -> str:
    """Return a field's docstring as one line, from the nearest class that has one; or ``""``."""
    kinds = (base for base in kind.__mro__ if issubclass(base, Section))
    fields = (base.model_fields[name] for base in kinds if name in base.model_fields)
    return " ".join(next((f.description for f in fields if f.description), "").split())


def dotted(tables: Mapping[Any, object], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables: ``{"data": {"alpha": 0.5}}`` -> ``{"data.alpha": 0.5}``."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        key = f"{prefix}{name}"
        flat |= dotted(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return flat


def nested(flat: Mapping[str, Value]) -> dict[str, Any]:
    """Return a flat config as nested tables, the inverse of ``dotted``."""
    tables: dict[str, Any] = {}
    for key, value in flat.items():
        *names, leaf = key.split(".")
        table = tables
        for name in names:
            table = table.setdefault(name, {})
        table[leaf] = value
    return tables
