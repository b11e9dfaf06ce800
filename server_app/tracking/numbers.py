"""The settings of a run and the numbers of a journal entry, by name, for trackers."""

import math
import re
from collections.abc import Iterator, Mapping

from common.journal import Entry, JsonObject, Use
from common.settings.config import Config
from common.settings.section import Value, kebab

LONGEST = 100  #: the most characters of a part of a name


def settings(config: Config) -> dict[str, Value]:
    """Return the settings that the run's method reads, by dotted key; ``auto`` is resolved."""
    return {
        f"{table}.{kebab(name)}".removeprefix("run."): value
        for table, section in config.read.items()
        for name, value in section.model_dump().items()
    }


def scalars(entry: Entry) -> dict[str, float]:
    """Return the entry's finite numbers by a path such as ``seconds/clients``."""
    return {name: value for name, value in _scalars(entry) if math.isfinite(value)}


def scores(entry: Entry) -> dict[str, list[float]]:
    """Return the clients' primary scores by a path; empty if clients scored no model."""
    accuracies: dict[str, list[float]] = {}
    for score in entry.scores:
        by_model = {"own": score.own, "global": score.shared, **score.further}
        for name, value in by_model.items():
            if value is not None and math.isfinite(value):
                accuracies.setdefault(f"clients/{_plain(name)}", []).append(value)
    return accuracies


def _scalars(entry: Entry) -> Iterator[tuple[str, float]]:
    for name, field in Entry.model_fields.items():
        if Use.TRACKED in field.metadata:
            yield from _numbers(name, getattr(entry, name))
    if entry.primary_score is not None:
        yield "primary_score", entry.primary_score
    if entry.privacy is not None:  # the other numbers are withheld
        return
    yield "failures", len(entry.failures)
    if entry.round > 0:
        yield "replied", len(entry.replied)


def _numbers(path: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield every number in the value of a field, with its path; lists are left out."""
    inner = value.as_dict() if isinstance(value, JsonObject) else value
    if isinstance(inner, Mapping):
        for name, field in inner.items():
            yield from _numbers(f"{path}/{_plain(name)}", field)
    elif isinstance(inner, int | float) and not isinstance(inner, bool):
        yield path, inner


def _plain(name: str) -> str:
    """Return a name that all trackers accept; names of models and metrics may come from clients."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:LONGEST] or "_"
