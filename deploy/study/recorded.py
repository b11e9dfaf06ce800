"""What the folder of a recorded cell tells: its summary, a number of it, when it reached another.

Of a cell the summary is kept for good, and its journal perhaps not: journals are large. So what a
table takes from journals is kept in ``reached.json`` beside the summary once it is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.files import write_atomically
from common.journal import whole_lines
from common.metrics import rounds_to

KEPT = "reached.json"


def record(place: Path) -> dict[str, object] | None:
    """The summary of a completed run in ``place``, or None."""
    path = place / "summary.json"
    if not path.exists():
        return None
    summary = _load(path)
    return summary if summary.get("status") == "completed" else None


def _load(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ``ValueError``, naming the file, if it is none."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
    return told


def measured(summary: Mapping[str, object], path: str) -> float | None:
    """The number at a dotted path of the summary; None if it is not there."""
    value: object = summary
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def reached(ours: Path, measure: str, theirs: Path, goal: str, window: int) -> float | None:
    """The first round in which the run in ``ours`` measures what ``theirs`` does at its end:
    ``measure`` of the one and ``goal`` of the other.

    ``window``: the mean of the last so many measurements must. Infinite if it never does; None if
    one of the two runs is not recorded, or both their journals and ``reached.json`` are gone.
    """
    if record(ours) is None or record(theirs) is None:
        return None
    name = f"{measure}, {window}: {goal} of {theirs.name}"
    path = ours / KEPT
    kept = _load(path) if path.exists() else {}
    if name not in kept:
        end, course = _course(theirs, goal), _course(ours, measure)
        if not end or not course:
            return None
        hit = rounds_to([value for _, value in course], end[-1][1], window)
        kept[name] = None if hit is None else course[hit - 1][0]
        write_atomically(path, f"{json.dumps(kept, indent=1)}\n".encode())
    return math.inf if kept[name] is None else float(kept[name])


def _course(place: Path, measure: str) -> list[tuple[int, float]]:
    """(round, measure) of a completed run, wherever its journal has it."""
    path, values = place / "journal.jsonl", []
    if not path.exists():
        return []
    for entry in (line.entry for line in whole_lines(path) if line.entry is not None):
        told = entry.model_dump(exclude_unset=True)
        if entry.fairness is not None:  # named as in the summary, where a measure also looks
            told["fairness"] = entry.fairness.flat()
        values.append((entry.round, measured(told, measure)))
    return [(t, value) for t, value in values if t > 0 and value is not None]
