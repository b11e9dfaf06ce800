"""What a TOML file holds as a strict pydantic model, or one line that says what is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from common.errors import refusal
from common.plugins import nearest

M = TypeVar("M", bound=BaseModel)


def check(kind: type[M], content: Mapping[str, object], path: Path) -> M:
    """``content`` as a ``kind``.

    Raises ``ValueError``, one line: the file, the key, its value, and what is allowed there.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = error.errors()
        # a misspelt key is unknown, and often missing too
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        raise ValueError(f"{path}: {_explain(kind, first)}") from error


def _explain(kind: type[BaseModel], error: ErrorDetails) -> str:
    *outer, last = error["loc"] or ("",)
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _keys(_inner(kind, outer))
        return f"key {where!r} is unknown{nearest(str(last), known)}; allowed: {', '.join(known)}"
    return refusal(error, where)


def _keys(kind: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _inner(kind: type[BaseModel], place: list[str | int]) -> type[BaseModel]:
    """The model at ``place``, a path of keys and numbers, of which each key is a list of models."""
    for key in place:
        if isinstance(key, str):
            (kind,) = get_args(kind.model_fields[key].annotation)
    return kind
