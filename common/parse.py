"""From Flower's flat run config to a ``Config``, or to one line that says what is wrong with it.

The launcher checks every table. The apps check the shared ones and the chosen method's, so that a
ClientApp imports one method and not all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from common import methods
from common.config import SECTIONS, Config, Run
from common.options import Descent
from common.section import Auto, Section, Value, kebab

S = TypeVar("S", bound=Section)

PATTERNS = {
    "device": "auto, cpu, cuda or cuda:N",
    "experiment": "letters, digits, '.', '_' and '-', beginning with a letter or digit",
    **{f"{name}.milestones": "rounds, such as 100,150" for name in ("train", "noise", "generator")},
}


def parse(flat: Mapping[str, Value], *, every: bool = False) -> Config:
    """The typed configuration of a flat run config; ``auto`` is resolved for the chosen method.

    ``every``: check the tables of the other methods too.

    Raises ``ValueError``, one line: an unknown key (with the nearest known one), a missing key, a
    value of the wrong type or out of bounds, a method that does not exist.
    """
    from common import optimise  # it imports torch, which who only asks for the keys does without

    names = methods.names()
    tables: dict[str, dict[str, Value]] = {name: {} for name in ["", *SECTIONS, *names]}
    for key, value in flat.items():
        table, _, leaf = key.rpartition(".")
        if table not in tables:
            raise ValueError(_unknown(key))
        tables[table][leaf] = value
    run = _section(Run, "", tables[""])
    if run.method not in names:
        raise ValueError(f'method = "{run.method}" is unknown; allowed: {", ".join(names)}')
    for name in names if every else ():
        if name != run.method:
            _section(methods.options(name), f"{name}.", tables[name])
    options = _section(methods.options(run.method), f"{run.method}.", tables[run.method])
    shared = {
        name: _resolved(_section(kind, f"{name}.", tables[name]), name, options.auto)
        for name, kind in SECTIONS.items()
    }
    run = _resolved(run, "", options.auto)
    config = Config.model_validate({"run": run, **shared, "method": options})
    if run.clients and run.per_round > run.clients:
        raise ValueError(f"per-round = {run.per_round} is more than clients = {run.clients}")
    if not config.fleet:
        raise ValueError(f'fleet = "{run.fleet}" names no architecture')
    for name, section in config.tables.items():
        if isinstance(section, Descent):
            optimise.check(name, section)
    options.check(config)
    return config


def tables() -> dict[str, type[Section]]:
    """Every table of the run config by its name; the top level has none."""
    return {"": Run, **SECTIONS, **{name: methods.options(name) for name in methods.names()}}


def defaults() -> dict[str, Value]:
    """Every key with its default, flat; ``auto`` stays."""
    return {
        f"{table}.{kebab(name)}".lstrip("."): field.default
        for table, kind in tables().items()
        for name, field in kind.model_fields.items()
    }


def known_keys() -> list[str]:
    """Every key of the run config, flat."""
    return list(defaults())


def auto_of(field: FieldInfo) -> Auto | None:
    """What marks a knob as one whose default is the method's."""
    return next((mark for mark in field.metadata if isinstance(mark, Auto)), None)


def usual(key: str, field: FieldInfo, auto: Mapping[str, Value]) -> Value:
    """A knob's default, resolved with a method's ``auto``."""
    mark = auto_of(field)
    default: Value = field.default if mark is None else auto.get(key, mark.usual)
    return default


def kind_of(key: str) -> type[Value]:
    """The Python type (bool, int, float or str) that a key's value has.

    Raises ``ValueError`` for an unknown key.
    """
    table, _, leaf = key.rpartition(".")
    known, name = tables(), leaf.replace("-", "_")
    if table not in known or name not in known[table].model_fields:
        raise ValueError(_unknown(key))
    annotation = known[table].model_fields[name].annotation
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        annotation = type(get_args(annotation)[0])
    kinds: dict[object, type[Value]] = {kind: kind for kind in (bool, int, float, str)}
    return kinds[annotation]


def _resolved(section: S, table: str, auto: Mapping[str, Value]) -> S:
    found = {
        name: usual(f"{table}.{kebab(name)}".lstrip("."), field, auto)
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
        raise ValueError(_explain(prefix, error.errors()[0])) from None


def _explain(prefix: str, error: ErrorDetails) -> str:
    key = prefix + kebab(str(error["loc"][0]))
    if error["type"] == "extra_forbidden":
        return _unknown(key)
    allowed = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if error["type"] == "string_pattern_mismatch":
        allowed = PATTERNS[key]
    if error["type"] == "string_too_short":
        allowed = "a name"
    value = error["input"]
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return f"{key} = {shown} is not allowed; it should be {allowed}"


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, known_keys(), n=1, cutoff=0.5)
    return f"key {key!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")
