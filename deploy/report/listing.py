"""What there is: methods, models, data sets, partitions, each with its source; every setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from common import methods as methods_
from deploy.report.table import Table


def methods() -> Table:
    """Name, what it is, its paper: the first two paragraphs of its contract."""
    rows = []
    for name in methods_.names():
        module = methods_.contract(name)
        title, source = _title_and_source(module.__doc__ or "")
        rows.append((name, title, source, module.__name__.replace(".", "/") + ".py"))
    return Table(("method", "what it is", "source", "contract"), rows, "l")


def models() -> Table:
    from common.models import MODELS

    rows = []
    for name, row in MODELS.items():
        size = "×".join(map(str, row.input))
        rows.append((name, f"{row.params:,}", size, str(row.smallest), row.source))
    return Table(("model", "parameters", "input", "smallest side", "source"), rows, "l")


def datasets() -> Table:
    from common.data import DATASETS

    rows = []
    for name, row in DATASETS.items():
        shape = "×".join(map(str, row.shape)) if row.shape else "any"
        rows.append((name, shape, str(row.classes or "any"), row.description))
    return Table(("data set", "shape", "classes", "what it is"), rows, "l")


def partitions() -> Table:
    from common.data.partition import PARTITIONS

    rows = []
    for name, row in PARTITIONS.items():
        keys = ", ".join(f"data.{option.replace('_', '-')}" for option in row.options)
        keys = keys.replace("data.num-classes", "").strip(", ")
        rows.append((name, row.description, row.source, keys))
    return Table(("partition", "what it does", "source", "keys"), rows, "l")


def settings(method: str = "") -> Table:
    """Every knob: key, default, what is allowed, meaning; with a method those that it reads, their
    defaults resolved for it.

    Raises ``ValueError`` for a method that does not exist.
    """
    from common.methods import names, options
    from common.parse import tables, usual
    from common.section import kebab, meanings

    known = tables()
    if method and method not in names():
        raise ValueError(f"method {method!r} is unknown; allowed: {', '.join(names())}")
    if method:
        shared = (method, *options(method).uses, "", "data", "train", "score", "wire")
        known = {table: known[table] for table in shared}
    auto = options(method).auto if method else {}
    rows = []
    for table, kind in known.items():
        said = meanings(kind)
        for name, field in kind.model_fields.items():
            key = f"{table}.{kebab(name)}".lstrip(".")
            default = usual(key, field, auto) if method else field.default
            shown = f'"{default}"' if isinstance(default, str) else str(default).lower()
            rows.append((key, shown, _allowed(field), said[name].replace("``", "")))
    return Table(("key", "default", "allowed", "meaning"), rows, "l")


def _allowed(field: FieldInfo) -> str:
    """What a knob may be: its words, or its bounds."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(word) or '""' for word in get_args(field.annotation))
    if field.annotation is bool:
        return "true, false"
    if field.annotation is str:
        return "text"
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    bounds = [
        f"{sign} {getattr(mark, name):,}"
        for mark in field.metadata
        for name, sign in signs
        if hasattr(mark, name)
    ]
    return ", ".join(bounds) or "any number"


LISTINGS: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "models": models,
    "datasets": datasets,
    "partitions": partitions,
    "settings": settings,
}


def _title_and_source(doc: str) -> tuple[str, str]:
    paragraphs = [" ".join(part.split()) for part in doc.strip().split("\n\n")]
    title = paragraphs[0].partition(":")[2].strip() or paragraphs[0]
    return title.rstrip("."), (paragraphs[1] if len(paragraphs) > 1 else "").rstrip(".")
