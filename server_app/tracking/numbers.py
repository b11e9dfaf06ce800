"""The settings of a run and the numbers of a journal entry, by name, for trackers."""

import math
import re
from collections.abc import Iterator, Mapping

from common.journal import Entry
from common.settings.config import Config
from common.settings.section import Value, kebab

ALWAYS = ("run", "data", "train", "score", "select", "wire")
LONGEST = 100  #: the most characters of a part of a name


def settings(config: Config) -> dict[str, Value]:
    """Return the settings that the run's method reads, by dotted key; ``auto`` is resolved."""
    read = {*ALWAYS, config.run.method, *config.method.uses}
    return {
        f"{table}.{kebab(name)}".removeprefix("run."): value
        for table, section in config.tables.items()
        if table in read
        for name, value in section.model_dump().items()
    }


def scalars(entry: Entry) -> dict[str, float]:
    """Return the entry's finite numbers by a path such as ``seconds/clients``."""
    return {name: value for name, value in _scalars(entry) if math.isfinite(value)}


def scores(entry: Entry) -> dict[str, list[float]]:
    """Return the clients' accuracies in [0, 1] by a path; empty if clients scored no model."""
    accuracies: dict[str, list[float]] = {}
    for score in entry.scores:
        by_model = {"own": score.accuracy, "global": score.accuracy_global, **score.accuracies}
        for name, value in by_model.items():
            if value is not None and math.isfinite(value):
                accuracies.setdefault(f"clients/{_plain(name)}", []).append(value)
    return accuracies


def _scalars(entry: Entry) -> Iterator[tuple[str, float]]:
    for name in ("accuracy", "loss", "accuracy_covered", "primary_accuracy", "drift"):
        if (value := getattr(entry, name)) is not None:
            yield name, value
    groups: dict[str, Mapping[str, float]] = {
        "accuracies": entry.accuracies,
        "accuracy_bn": entry.accuracy_bn,
        "metrics": entry.metrics,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
        "flops": entry.flops,
        "memory": entry.memory.as_dict() if entry.memory else {},
    }
    if entry.personal is not None:
        groups["personal"] = entry.personal.model_dump()
    if entry.by_class is not None:
        groups["by_class"] = entry.by_class.model_dump(exclude={"accuracy"})
    if entry.fairness is not None:
        groups["fairness"] = entry.fairness.main.model_dump()
        for model, spread in entry.fairness.models.items():
            groups[f"fairness/{_plain(model)}"] = spread.model_dump()
    if entry.incentive is not None:
        incentive = entry.incentive
        groups["incentive"] = {"before": incentive.before, "after": incentive.after}
    for group, values in groups.items():
        for name, value in values.items():
            yield f"{group}/{_plain(name)}", value
    if entry.privacy is not None:  # these numbers are withheld
        return
    yield "failures", len(entry.failures)
    if entry.round > 0:
        yield "replied", len(entry.replied)


def _plain(name: str) -> str:
    """Return a name that all trackers accept; names of models and metrics may come from clients."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:LONGEST] or "_"
