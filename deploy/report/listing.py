"""What there is: methods, models, data sets, partitions, each with its source."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from rich.table import Table


def methods() -> Table:
    """Name, what it is, its paper: the first two paragraphs of its contract."""
    from common.methods import CONFIGS

    table = _table("method", "what it is", "source", "contract")
    for name, config in CONFIGS.items():
        module = importlib.import_module(config.__module__)
        title, source = _title_and_source(module.__doc__ or "")
        table.add_row(name, title, source, module.__name__.replace(".", "/") + ".py")
    return table


def models() -> Table:
    from common.models import MODELS

    table = _table("model", "parameters", "input", "smallest side", "source")
    for name, row in MODELS.items():
        size = "×".join(map(str, row.input))
        table.add_row(name, f"{row.params:,}", size, str(row.smallest), row.source)
    return table


def datasets() -> Table:
    from common.data import DATASETS

    table = _table("data set", "shape", "classes", "what it is")
    for name, row in DATASETS.items():
        shape = "×".join(map(str, row.shape)) if row.shape else "any"
        table.add_row(name, shape, str(row.classes or "any"), row.description)
    return table


def partitions() -> Table:
    from common.data.partition import PARTITIONS

    table = _table("partition", "what it does", "source", "keys")
    for name, row in PARTITIONS.items():
        keys = ", ".join(f"data.{option.replace('_', '-')}" for option in row.options)
        table.add_row(
            name, row.description, row.source, keys.replace("data.num-classes", "").strip(", ")
        )
    return table


LISTINGS: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "models": models,
    "datasets": datasets,
    "partitions": partitions,
}


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == columns[0])
    return table


def _title_and_source(doc: str) -> tuple[str, str]:
    paragraphs = [" ".join(part.split()) for part in doc.strip().split("\n\n")]
    title = paragraphs[0].partition(":")[2].strip() or paragraphs[0]
    return title.rstrip("."), (paragraphs[1] if len(paragraphs) > 1 else "").rstrip(".")
