"""The keys of a run config, and what the marks on their fields say of them."""

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic.fields import FieldInfo

from common import methods
from common.settings import plugins
from common.settings.clock import Profile
from common.settings.config import SECTIONS, MethodOptions, Node, Run
from common.settings.marks import Mark, Names, Place
from common.settings.section import Section, Value, keys_of

NODE = re.compile(r"node\.(0|[1-9][0-9]{0,6})")
"""Name of the table of a single client, with the client's number."""
PROFILE = re.compile(r"profile\.([A-Za-z0-9][A-Za-z0-9_-]{0,39})")
"""Name of the table of a device, with the profile's name."""
NAMED: Mapping[str, tuple[re.Pattern[str], type[Section]]] = {
    "node.K": (NODE, Node),
    "profile.NAME": (PROFILE, Profile),
}
"""Tables of which a run config may have several, by the name that stands for all of them."""
SHARED: Mapping[str, type[Section]] = {
    **{"": Run, **SECTIONS},
    **{name: kind for name, (_, kind) in NAMED.items()},
}
"""Tables that every run config may have, by name; the top level is ``""``."""

Fields = Mapping[str, FieldInfo]
M = TypeVar("M")


def fields(tables: Mapping[str, type[Section]]) -> dict[str, FieldInfo]:
    """Return the field of each key of these tables, by key."""
    return {key: field for table, kind in tables.items() for key, field in keys_of(table, kind)}


SHARED_FIELDS: Fields = fields(SHARED)


def general_table(table: str) -> str:
    """Return the name in ``NAMED`` of a table; empty if it is no such table."""
    return next((name for name, (form, _) in NAMED.items() if form.fullmatch(table)), "")


def general(key: str) -> str:
    """Return a key with ``K`` for the client's number or ``NAME``, as in ``SHARED``."""
    table, _, leaf = key.rpartition(".")
    return f"{name}.{leaf}" if (name := general_table(table)) else key


def marked(*marks: Mark, within: Fields = SHARED_FIELDS) -> list[str]:
    """Return the keys of the fields that have any of these marks."""
    return [key for key, field in within.items() if not {*marks}.isdisjoint(marks_of(field))]


def decisive(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a flat run config that a resumed run may not change, by key."""
    free = {key for key, field in SHARED_FIELDS.items() if Mark.FREE in field.metadata}
    return {key: value for key, value in sorted(flat.items()) if general(key) not in free}


def mark_of(kind: type[M], field: FieldInfo | None) -> M | None:
    """Return the field's mark of class ``kind``; None if it has none, or if there is no field."""
    return next((m for m in field.metadata if isinstance(m, kind)), None) if field else None


def marks_of(field: FieldInfo) -> list[Mark]:
    """Return the marks without parameters of a field."""
    return [mark for mark in field.metadata if isinstance(mark, Mark)]


def places(flat: Mapping[str, Value], method: str = "") -> list[str]:
    """Return the keys with a value that names a folder or file, of all clients or of one.

    ``method``: the method whose table counts too, if ``flat`` does not name it.
    """
    method = method or str(flat.get("method", ""))
    try:
        own = methods.options(method) if method else MethodOptions
    except ValueError:  # a plug-in that is not here: the error follows where the method is made
        own = MethodOptions
    known = {**SHARED_FIELDS, **fields({plugins.table_of(method): own})}
    found = {key: mark for key, field in known.items() if (mark := mark_of(Place, field))}
    of_paths = ((key, value, found.get(general(key))) for key, value in flat.items() if value)
    return [key for key, value, mark in of_paths if mark and value not in mark.words]


def naming(flat: Mapping[str, object]) -> dict[str, Names]:
    """Return the keys of a flat run config whose values are names, each with its mark."""
    marks = {key: mark_of(Names, SHARED_FIELDS.get(general(key))) for key in flat}
    return {key: mark for key, mark in marks.items() if mark}


def named(flat: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of each name in a flat run config; models without their width factor."""
    for key, mark in naming(flat).items():
        for name in str(flat[key]).split(","):
            plain = plugins.network if mark.kind == "models" else str.strip
            if name := plain(name.strip()):
                yield mark.kind, name


def roots(flat: Mapping[str, object]) -> list[str]:
    """Return the top modules of the ``module:attribute`` names in a flat run config, each once."""
    return list(dict.fromkeys(filter(None, (plugins.top_of(name) for _, name in named(flat)))))
