"""A table of the run config: its base class, and how a knob's default, bounds and meaning are told.

A knob is a field with a default and a docstring. ``fedmosaic list settings`` and the values that
``pyproject.toml`` hands to Flower are made of nothing else.
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
    """A field's name as the run config writes it: ``batch_size`` is ``batch-size``."""
    return name.replace("_", "-")


def value_kind(field: FieldInfo) -> type[Value] | None:
    """The Python type (bool, int, float or str) of a knob's values; None if it is another."""
    annotation = field.annotation
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        annotation = type(get_args(annotation)[0])
    kinds: dict[object, type[Value]] = {kind: kind for kind in (bool, int, float, str)}
    return kinds.get(annotation)


class Section(BaseModel):
    """One table of the run config. Field ``batch_size`` is the key ``batch-size``."""

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
    """Marks a knob whose default differs between methods: ``auto``, for numbers 0.

    ``usual``: what that stands for unless the method's contract says otherwise.
    """

    usual: Value


def meaning(kind: type[Section], name: str) -> str:
    """Return the line below a field, here or in the nearest base class that has one; or nothing."""
    kinds = (base for base in kind.__mro__ if issubclass(base, Section))
    fields = (base.model_fields[name] for base in kinds if name in base.model_fields)
    return " ".join(next((f.description for f in fields if f.description), "").split())
