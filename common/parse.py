"""From Flower's flat run config to a ``Config``, or to one line that says what is wrong with it.

The launcher checks every table. The apps check the shared ones and the chosen method's, so that a
ClientApp imports one method and not all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from common import methods
from common.config import SECTIONS, Config, Run
from common.plugins import nearest, table_of
from common.section import Auto, Section, Value, kebab, value_kind

S = TypeVar("S", bound=Section)

PATTERNS = {
    "device": "auto, cpu, cuda or cuda:N",
    "experiment": "letters, digits, '.', '_' and '-', beginning with a letter or digit",
}


def parse(flat: Mapping[str, Value], *, every: bool = False) -> Config:
    """The typed configuration of a flat run config; ``auto`` is resolved for the chosen method.

    ``every``: check the tables of the other methods too.

    Raises ``ValueError``, one line: an unknown key (with the nearest known one), a missing key, a
    value of the wrong type or out of bounds, a method that does not exist.
    """
    names, own = methods.names(), table_of(str(flat.get("method", "")))
    tables: dict[str, dict[str, Value]] = {name: {} for name in ["", *SECTIONS, *names, own]}
    for key, value in flat.items():
        table, _, leaf = key.rpartition(".")
        if table not in tables:
            raise ValueError(_unknown(key, known_keys()))
        tables[table][leaf] = value
    run = _section(Run, "", tables[""])
    kind = methods.options(run.method)
    for name in names if every else ():
        if name != run.method:
            _section(methods.options(name), f"{name}.", tables[name])
    options = _section(kind, f"{own}.", tables[own])
    shared = {
        name: _resolved(_section(kind, f"{name}.", tables[name]), name, options.auto)
        for name, kind in SECTIONS.items()
    }
    config = Config.model_validate({"run": run, **shared, "method": options})
    if run.clients and run.per_round > run.clients:
        raise ValueError(f"per-round = {run.per_round} is more than clients = {run.clients}")
    if not config.fleet:
        raise ValueError(f'fleet = "{run.fleet}" names no architecture')
    options.check(config)
    return config


def tables(method: str = "") -> dict[str, type[Section]]:
    """Every table of the run config by its name; the top level has none.

    ``method``: with the table of this one too, if it is a plug-in's.

    Raises ``ValueError``, one line, for a method that does not exist.
    """
    ours = {name: methods.options(name) for name in methods.names()}
    own = {table_of(method): methods.options(method)} if method else {}
    return {"": Run, **SECTIONS, **ours, **own}


def defaults(method: str = "") -> dict[str, Value]:
    """Every key with its default, flat; ``auto`` stays. ``method``: as for ``tables``."""
    return {
        f"{table}.{kebab(name)}".lstrip("."): field.default
        for table, kind in tables(method).items()
        for name, field in kind.model_fields.items()
    }


def known_keys(method: str = "") -> list[str]:
    """Every key of the run config, flat. ``method``: as for ``tables``."""
    return list(defaults(method))


def auto_of(field: FieldInfo) -> Auto | None:
    """What marks a knob as one whose default is the method's."""
    return next((mark for mark in field.metadata if isinstance(mark, Auto)), None)


def usual(key: str, field: FieldInfo, auto: Mapping[str, Value]) -> Value:
    """A knob's default, resolved with a method's ``auto``."""
    mark = auto_of(field)
    default: Value = field.default if mark is None else auto.get(key, mark.usual)
    return default


def kind_of(key: str, method: str = "") -> type[Value]:
    """The Python type (bool, int, float or str) that a key's value has.

    ``method``: as for ``tables``. Raises ``ValueError`` for an unknown key.
    """
    table, _, leaf = key.rpartition(".")
    known, name = tables(method), leaf.replace("-", "_")
    if table not in known or name not in known[table].model_fields:
        raise ValueError(_unknown(key, known_keys(method)))
    kind = value_kind(known[table].model_fields[name])
    assert kind is not None, key
    return kind


def _resolved(section: S, table: str, auto: Mapping[str, Value]) -> S:
    found = {
        name: usual(f"{table}.{kebab(name)}", field, auto)
        for name, field in type(section).model_fields.items()
        if auto_of(field) and getattr(section, name) in ("auto", 0)
    }
    return section.model_copy(update=found)


def _section(kind: type[S], prefix: str, table: Mapping[str, Value]) -> S:
    try:
        if missing := sorted({kebab(name) for name in kind.model_fields} - table.keys()):
            raise ValueError(f"key {prefix + missing[0]!r} is missing")
        return kind.model_validate(table)
    except ValidationError as error:
        raise ValueError(_explain(kind, prefix, error.errors()[0])) from None


def _explain(kind: type[Section], prefix: str, error: ErrorDetails) -> str:
    key = prefix + kebab(str(error["loc"][0]))
    if error["type"] == "extra_forbidden":
        return _unknown(key, [*known_keys(), *(prefix + kebab(name) for name in kind.model_fields)])
    allowed = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if error["type"] == "string_pattern_mismatch":
        allowed = PATTERNS[key]
    if error["type"] == "string_too_short":
        allowed = "a name"
    value = error["input"]
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return f"{key} = {shown} is not allowed; it should be {allowed}"


def _unknown(key: str, known: list[str]) -> str:
    return f"key {key!r} is unknown{nearest(key, known)}"
