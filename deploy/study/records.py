"""The record of a table: ``cells.jsonl`` in its folder, a line for each cell that has been run.

A line is a JSON object with sorted keys (``Recorded``). Several processes may add to one file. A
last line without its end, as a crash leaves it, is ignored, and removed before the next is added.

A cell runs in ``cells/<fingerprint>`` beside the record, where its journal and its model remain.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from common.journal import Entry
from common.metrics import rounds_to
from common.settings.config import Value
from deploy.report import read as report
from deploy.run.settings import chosen

NAME, RUNS = "cells.jsonl", "cells"
Flat = dict[str, Value]
CURVE = {"round", "accuracy", "accuracies", "accuracy_bn", "loss", "drift", "metrics"}
CURVE |= {"bytes", "flops"}


@final
class Recorded(BaseModel):
    """A cell that has been run."""

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    settings: Flat
    """What differs from the defaults; the fingerprint is the digest of it."""
    seed: int
    summary: dict[str, Any]
    """What the run's ``summary.json`` holds."""
    curve: dict[str, list[int | float | None]] = {}
    """``round``, from the census (0) on, and numbers of the journal by their dotted names, an item
    for each round: ``accuracy``, ``bytes.up``, ``fairness.wlp``. Null where a round has none."""
    reached: dict[str, int | None] = {}
    """Rounds to a target by the target's name, for a cell recorded before there were curves; null:
    never."""

    @classmethod
    def of(cls, flat: Flat, run: Path) -> Recorded | None:
        """The cell ``flat``, if the run in the folder ``run`` is complete."""
        if (summary := completed(run)) is None:
            return None
        kept = (run / "journal.jsonl").exists()
        rounds = [_numbers(entry) for entry in report.read(run).entries] if kept else []
        names = sorted({name for numbers in rounds for name in numbers})
        return cls(
            fingerprint=fingerprint(flat),
            settings=chosen(flat),
            seed=int(flat["seed"]),
            summary=summary,
            curve={name: [numbers.get(name) for numbers in rounds] for name in names},
        )

    def line(self) -> bytes:
        """The cell as the file has it, with the line's end."""
        told = self.model_dump(exclude_defaults=True)
        return json.dumps(told, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    def measured(self, measure: str) -> float | None:
        """The number at a dotted path of the summary; None if it is not there."""
        value: object = self.summary
        for part in measure.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) else None

    def course(self, measure: str) -> list[tuple[int, float]]:
        """(round, number) of each round after the census that has it."""
        both = zip(self.curve.get("round", []), self.curve.get(measure, []), strict=False)
        return [(int(t), value) for t, value in both if t and value is not None]

    def reaches(self, measure: str, other: Recorded, goal: str, window: int) -> float | None:
        """The first round in which ``measure`` is what ``goal`` of the ``other`` cell is at its
        end, or higher.

        ``window``: the mean of the last so many numbers must be. Infinite if it never is; None if
        the curve of one of them is not known.
        """
        name = f"{measure}, {window}: {goal} of {other.fingerprint}"
        if name in self.reached:
            t = self.reached[name]
        else:
            course, end = self.course(measure), other.course(goal)
            if not course or not end:
                return None
            hit = rounds_to([value for _, value in course], end[-1][1], window)
            t = None if hit is None else course[hit - 1][0]
        return math.inf if t is None else float(t)


def fingerprint(flat: Mapping[str, Value]) -> str:
    """Equal for equal configurations, so that a recorded run is found again."""
    return hashlib.sha256(json.dumps(chosen(flat)).encode()).hexdigest()[:16]


def completed(run: Path) -> dict[str, Any] | None:
    """The summary of the run in a folder, if it is complete."""
    path = run / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        return summary if summary["status"] == "completed" else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def begun(folder: Path) -> bool:
    """Whether cells of a table have been run in ``folder``."""
    return (folder / NAME).exists() or (folder / RUNS).exists()


def read(folder: Path) -> dict[str, Recorded]:
    """The cells that are recorded in ``folder``, by their fingerprints.

    Raises ``ValueError``, one line, for a line that is no record of a cell.
    """
    path, found = folder / NAME, {}
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for i, line in enumerate(lines, start=1):
        try:
            cell = Recorded.model_validate_json(line)
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"]
            raise ValueError(f"{path}, line {i} is damaged: {why}") from error
        found[cell.fingerprint] = cell
    return found


def gather(folder: Path, cells: Mapping[str, Flat]) -> dict[str, Recorded]:
    """``read``, after recording each of ``cells`` that has a complete run and no line yet: a run
    that has just ended, that another machine did, or an earlier release.

    ``cells``: configurations by their fingerprints.
    """
    found = read(folder)
    for name in (name for name in cells if name not in found):
        if (cell := Recorded.of(cells[name], folder / RUNS / name)) is not None:
            append(folder, cell)
            found[name] = cell
    return found


def append(folder: Path, cell: Recorded) -> None:
    """Add a line to the record in ``folder``; it is on the disk then."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / NAME, "a+b") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            filelock.lock_descriptor(file.fileno())
        file.seek(0)
        lines, end, _ = file.read().rpartition(b"\n")
        file.truncate(len(lines + end))
        if f'"fingerprint":"{cell.fingerprint}"'.encode() not in lines:
            file.write(cell.line())
        file.flush()
        os.fsync(file.fileno())


def _numbers(entry: Entry) -> dict[str, Any]:
    """What a curve takes of one line of the journal, by dotted names."""
    told = entry.model_dump(include=CURVE, exclude_unset=True)
    if entry.fairness is not None:  # named as in the summary
        told["fairness"] = entry.fairness.flat()
    return {name: value for name, value in report.flat(told).items() if value is not None}
