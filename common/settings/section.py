"""Base class of the run config's tables, and the types of settings.

A setting is a field with a default and a docstring. ``fedmosaic list settings`` and the defaults
for Flower in ``pyproject.toml`` are generated from these fields.
"""

from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Literal, Union, final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Value = bool | int | float | str
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


@final
@dataclass(frozen=True)
class Auto:
    """Mark of a setting whose default, ``auto`` or for numbers 0, depends on the method."""

    usual: Value
    """Value of ``auto`` unless the method's contract has another."""


def meaning(kind: type[Section], name: str) -> str:
    """Return a field's docstring as one line, from the nearest class that has one; or ``""``."""
    kinds = (base for base in kind.__mro__ if issubclass(base, Section))
    fields = (base.model_fields[name] for base in kinds if name in base.model_fields)
    return " ".join(next((f.description for f in fields if f.description), "").split())
