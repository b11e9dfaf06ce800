"""Lists of methods, models, data sets, partitions, trackers, selections, profiles and settings.

``listing.json`` is a built copy of the registries, so that a list imports no torch.
``python -m docs.tools.generate`` writes it. Installed plug-ins are added when a list is printed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, final, get_args, get_origin

from pydantic.fields import FieldInfo
from rich import table as rich_table
from rich.text import Text

from common import methods
from common.keys import NAMED
from common.settings import plugins
from common.settings.config import ALWAYS, FLEETS
from common.settings.section import Section, Value, kebab, meaning, value_kind
from deploy.report import chooser
from deploy.report.table import Table, terminal

HEADERS: dict[str, tuple[str, ...]] = {
    "methods": ("method", "what it is", "source", "contract"),
    "models": ("model", "parameters", "input", "smallest side", "source"),
    "datasets": ("data set", "shape", "classes", "what it is"),
    "partitions": ("partition", "what it does", "source", "keys"),
    "trackers": ("tracker", "what it is"),
    "selections": ("selection", "what it does"),
    "profiles": (
        *("profile", "FLOP/s", "e", "memory", "memory bandwidth", "network", "watts", "source"),
    ),
}
"""Columns of each list but that of the settings."""
PLUGGED: Mapping[str, Callable[[str, str, str], Sequence[str]]] = {
    "methods": lambda name, about, place: (name, about, "", place),
    "models": lambda name, about, place: (name, "", "any", "", f"{about}: {place}"),
    "datasets": lambda name, about, place: (name, "any", "any", f"{about}: {place}"),
    "partitions": lambda name, about, place: (name, about, place, ""),
    "trackers": lambda name, about, place: (name, f"{about}: {place}"),
    "selections": lambda name, about, place: (name, f"{about}: {place}"),
}
"""Row of an installed plug-in from its name, its package and its place."""


@final
class Setting(NamedTuple):
    """A setting of the run config."""

    key: str  #: such as ``data.alpha``
    default: Value | None  #: None: the run's value
    allowed: str  #: its words, or its bounds
    meaning: str  #: one line


def rows(kind: str) -> Table:
    """Return the list of a ``kind``, a key of ``HEADERS``: built-in names, then plug-ins."""
    ours = chooser.built()[kind]
    names = {row[0] for row in ours} | ({*FLEETS, "smallest"} if kind == "models" else set())
    plugged = []
    for name, points in plugins.installed(kind).items() if kind in PLUGGED else ():
        for point in points:
            package = point.dist.name if point.dist else "?"
            shadowed = f"; {name} is built in, so write the place" if name in names else ""
            plugged.append(PLUGGED[kind](name, f"plug-in of {package}{shadowed}", point.value))
    return Table(HEADERS[kind], [*ours, *plugged], "l")


def methods_that_fit(answers: Mapping[str, str]) -> Table:
    """Return the list of the built-in methods that fit the answers to the chooser's questions.

    Raises ``ValueError``, one line, for an answer that a question does not have.
    """
    names, every = chooser.fitting(answers), chooser.built()["methods"]
    title = f"{len(names)} of {len(every)} methods fit"
    return Table(HEADERS["methods"], [row for row in every if row[0] in names], "l", title)


def described(method: str = "") -> list[Setting]:
    """Return every setting; with a method, the settings that it reads with resolved defaults.

    Raises ``ValueError`` for a method that does not exist or a plug-in that is not a method.
    """
    every = [Setting(*row) for row in chooser.built()["settings"]]
    if not method:
        return every + [s for name in plugins.installed("methods") for s in _own(name)]
    if method not in methods.names():
        return list(read_by(method))
    _, tables, defaults = next(row for row in chooser.built()["reads"] if row[0] == method)
    known = {table: [s for s in every if s.key.rpartition(".")[0] == table] for table in tables}
    return [
        setting._replace(default=defaults.get(setting.key, setting.default))
        for table in tables
        for setting in known[table]
    ]


def search(word: str) -> list[Setting]:
    """Return the settings that the method ``word`` reads, or those with ``word`` in key or meaning.

    An empty word stands for all settings. Raises ``ValueError``, one line, if nothing matches.
    """
    named = [*methods.names(), *plugins.installed("methods")]
    if not word or ":" in word or word in named:
        return described(word)
    every, text = described(), word.lower()
    matching = [s for s in every if text in s.key.lower() or text in s.meaning.lower()]
    if not matching:
        near = plugins.nearest(word, [*named, *(setting.key for setting in every)])
        raise ValueError(
            f"list settings {word}: no method has this name, and no setting has it in its key or "
            f"description{near}"
        )
    return matching


def shown(table: Table) -> rich_table.Table:
    """Return a list as it is printed: columns, or wrapped texts where there are several texts."""
    if len(table.header) == 4 and table.header[1].startswith("what"):
        return _entries(
            (row[0], str(row[1]), [str(text) for text in row[2:]]) for row in table.rows
        )
    if len(table.header) > 5:  # too wide for a terminal
        return _entries(
            (row[0], "; ".join(_named(table.header, row[1:-1])), [str(row[-1])])
            for row in table.rows
        )
    (whole,) = terminal(table, ruled=False)
    return whole


def _named(header: Sequence[str], cells: Sequence[object]) -> Iterator[str]:
    """Yield the cells after the first one that have a value, each with the name of its column."""
    for name, cell in zip(header[1:], cells, strict=False):
        if str(cell):
            yield f"{name} {cell}"


def shown_settings(settings: Sequence[Setting]) -> rich_table.Table:
    """Return settings as they are printed: key, then meaning, default and allowed values."""
    lines = []
    for key, value, allowed, text in settings:
        default = "the run's" if value is None else json.dumps(value, ensure_ascii=False)
        lines.append((key, text, [f"default: {default}; allowed: {allowed}"]))
    return _entries(iter(lines))


def _entries(lines: Iterator[tuple[Any, str, list[str]]]) -> rich_table.Table:
    """Return two columns: names, and wrapped texts with their details in grey below."""
    grid = rich_table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text, details in lines:
        cell = Text(text)
        for detail in filter(None, details):
            cell.append(f"\n{detail}", "dim")
        grid.add_row(Text(str(name), "bold"), cell)
    return grid


def read_by(method: str) -> Iterator[Setting]:
    """Yield the settings that a method reads, with the defaults that it gives them."""
    from common.parse import tables, usual

    known = dict(tables(method)) | {name: kind for name, (_, kind) in NAMED.items()}
    options, own = methods.options(method), plugins.table_of(method)
    for table in (own, *options.uses, "", *ALWAYS, *NAMED):
        for setting, field in zip(
            settings_of(table, known[table]), known[table].model_fields.values(), strict=True
        ):
            default = usual(setting.key, field, options.auto)
            yield setting._replace(default=method if setting.key == "method" else default)


def _own(method: str) -> list[Setting]:
    """Return the settings in a method's own table."""
    return list(settings_of(plugins.table_of(method), methods.options(method)))


def settings_of(table: str, kind: type[Section]) -> Iterator[Setting]:
    """Yield the settings of a table."""
    for name, field in kind.model_fields.items():
        key = f"{table}.{kebab(name)}".lstrip(".")
        line = meaning(kind, name).replace("``", "")
        yield Setting(key, field.default, _allowed(field), line)


def _allowed(field: FieldInfo) -> str:
    """Return the words that a setting may be, or its bounds."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(word) or '""' for word in get_args(field.annotation))
    if (kind := value_kind(field)) is not int and kind is not float:
        return "true, false" if kind is bool else "text"
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    marks = ((mark, name, sign) for mark in field.metadata for name, sign in signs)
    bounds = [f"{sign} {getattr(m, name):,}" for m, name, sign in marks if hasattr(m, name)]
    return ", ".join(bounds) or "any number"


LISTINGS: dict[str, Callable[[], Table]] = {kind: partial(rows, kind) for kind in HEADERS}
