"""What there is: methods, models, data sets, partitions, each with its source."""

from __future__ import annotations

from collections.abc import Callable

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


LISTINGS: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "models": models,
    "datasets": datasets,
    "partitions": partitions,
}


def _title_and_source(doc: str) -> tuple[str, str]:
    paragraphs = [" ".join(part.split()) for part in doc.strip().split("\n\n")]
    title = paragraphs[0].partition(":")[2].strip() or paragraphs[0]
    return title.rstrip("."), (paragraphs[1] if len(paragraphs) > 1 else "").rstrip(".")
