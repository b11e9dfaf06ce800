"""The record of a table: ``cells.jsonl`` in its folder, with a line for each finished cell.

A line is a JSON object with sorted keys (``Recorded``). Several processes may append to one file. A
crash may leave an incomplete last line: it is ignored, and removed before the next is appended.

A cell runs in ``cells/<fingerprint>`` beside the record; its journal and model remain there.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import invalid
from common.files import parse_json
from common.journal import Entry
from common.measures import ACCURACY, MEASURES, Measure
from common.metrics import rounds_to
from common.settings.config import Value
from common.settings.section import dotted
from deploy.report import read as report
from deploy.settings import chosen

NAME, RUNS = "cells.jsonl", "cells"
Flat = dict[str, Value]
CURVE = {"round", "accuracy", "accuracies", "accuracy_bn", "loss", "drift", "metrics"}
CURVE |= {"bytes", "flops", "personal", "measures"}
AS_SUMMARY = ("fairness", "clock")
"""Fields of the journal whose curves have the names of the summary."""


@final
@dataclass(frozen=True)
class Cost:
    """A cost of a run that grows from round to round: the sum of these ``curves`` of its record.

    ``by_round``: whether the curves have each round's own cost, not that since the run's start.
    """

    curves: Sequence[str]
    by_round: bool = True


COSTS: Mapping[str, Cost] = {
    "rounds": Cost(("round",), by_round=False),
    "bytes": Cost(("bytes.up", "bytes.down")),
    "flops": Cost(("flops.clients", "flops.server")),
    "clock": Cost(("clock.end",), by_round=False),
}
"""Costs until a target (``clock.to:0.6``), at which a score counts (``clock.at:30``), and of
budgets: rounds, bytes of all clients, operations of all clients and the server, and seconds on the
virtual clock."""
SCORE = re.compile(r"(primary|personal|fairness)\.(?!measures)(.+\.)?(?!std|fm|clients)\w+")
"""Paths of primary scores, of clients' ones and their fairness, without deviations and counts."""
OF_COST = re.compile(r"(\w+)\.(to|at):(.*)")


@final
class Recorded(BaseModel):
    """The record of a finished cell."""

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    settings: Flat
    """Settings that differ from the defaults; the fingerprint is their digest."""
    seed: int
    summary: dict[str, Any]
    """The content of the run's ``summary.json``."""
    curve: dict[str, list[int | float | None]] = {}
    """``round``, from the census (0) on, and numbers of the journal by dotted name, one item for
    each round: ``primary``, ``bytes.up``, ``fairness.wlp``. Null if a round lacks the number."""
    reached: dict[str, int | None] = {}
    """Rounds to a target by the target's name, only in records without curves; null: never."""

    @classmethod
    def of(cls, flat: Flat, run: Path) -> Recorded | None:
        """Return the record of the cell ``flat``, if the run in the folder ``run`` is complete."""
        if (summary := completed(run)) is None:
            return None
        has_journal = (run / "journal.jsonl").exists()
        rounds = [_numbers(entry) for entry in report.read(run).entries] if has_journal else []
        names = sorted({name for numbers in rounds for name in numbers})
        return cls(
            fingerprint=fingerprint(flat),
            settings=chosen(flat),
            seed=int(flat["seed"]),
            summary=summary,
            curve={name: [numbers.get(name) for numbers in rounds] for name in names},
        )

    def line(self) -> bytes:
        """Return the cell's line in the file, with its line feed."""
        fields = self.model_dump(exclude_defaults=True)
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    def measured(self, measure: str) -> float | None:
        """Return the number at a dotted path of the summary; None if it is missing.

        ``clock.to:0.6``, or another of ``COSTS``: the cost until the target (``cost_to``).
        ``clock.at:30``: the primary score at this cost (``accuracy_at``).
        """
        if found := of_cost(measure):
            cost, how, number = found
            return (self.cost_to if how == "to" else self.accuracy_at)(cost, number)
        value: object = self.summary
        for key in self.path(measure).split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) else None

    def measure_of(self, path: str) -> Measure | None:
        """Return the measure of the number at a path; None for a number that is no score."""
        of_score = SCORE.fullmatch(path) or path.partition(":")[0].endswith(".at")
        return named_measure(path) or (self.primary_measure if of_score else None)

    @property
    def primary_measure(self) -> Measure:
        """The measure of the primary score."""
        return MEASURES[(self.summary.get("primary") or {}).get("measure", ACCURACY.name)]

    def path(self, measure: str) -> str:
        """Return the path in the summary; an old record's primary score is the accuracy."""
        old = "primary" not in self.summary
        return re.sub(r"^primary\.", "accuracy.", measure) if old else measure

    def measures(self) -> list[str]:
        """Return the dotted paths of all numbers in the summary."""
        flat = dotted(self.summary)
        return [name for name in flat if self.measured(name) is not None]

    @property
    def personal(self) -> bool:
        """Whether the primary score is personal."""
        return bool((self.summary.get("primary") or {}).get("score") == "personal")

    def course(self, measure: str) -> list[tuple[int, float]]:
        """Return (round, number) of each round after the census that has the number."""
        both = zip(self.curve.get("round", []), self.curve.get(measure, []), strict=False)
        return [(int(t), value) for t, value in both if t and value is not None]

    def last(self, measure: str) -> float | None:
        """Return the number of the last round that has it; None without any."""
        course = self.course(measure)
        return course[-1][1] if course else None

    def reaches(self, measure: str, other: Recorded, goal: str, window: int) -> float | None:
        """Return the first round in which ``measure`` reaches the last ``goal`` of ``other``.

        ``window``: the number of last measurements whose mean must reach the goal. Return ∞ if
        it is never reached, and None if one of the curves is unknown.
        """
        name = f"{measure}, {window}: {goal} of {other.fingerprint}"
        if name in self.reached:
            t = self.reached[name]
        else:
            course, end = self.course(measure), other.last(goal)
            if not course or end is None:
                return None
            kind = named_measure(measure) or self.primary_measure
            t = _first_round(course, end, kind, window)
        return math.inf if t is None else float(t)

    def spent(self, cost: str) -> list[float]:
        """Return a cost since the run's start at the end of each round, the census first.

        ``cost``: one of ``COSTS``. The list is empty if the record lacks the cost.
        """
        curves = [self.curve[name] for name in COSTS[cost].curves if name in self.curve]
        of_rounds = (sum(x or 0 for x in xs) for xs in itertools.zip_longest(*curves, fillvalue=0))
        return [*itertools.accumulate(of_rounds, operator.add if COSTS[cost].by_round else max)]

    def cost_to(self, cost: str, target: float) -> float | None:
        """Return a cost until the end of the first round whose primary score reaches a target.

        Return ∞ if the target is never reached, and None if the record lacks the cost or scores.
        Raises ``ValueError``, one line, for a target that the score cannot have.
        """
        self.primary_measure.check(f"the target of '{cost}.to:{target:g}'", target)
        course, spent = self.course("primary"), self.spent(cost)
        if not course or not spent:
            return None
        t = _first_round(course, target, self.primary_measure)
        return math.inf if t is None else spent[self.curve["round"].index(t)]

    def accuracy_at(self, cost: str, most: float) -> float | None:
        """Return the last primary score within a cost, at first that of the census.

        Return None if the record lacks the cost or such a score.
        """
        both = zip(self.spent(cost), self.curve.get("primary", []), strict=False)
        within = [score for spent, score in both if score is not None and spent <= most]
        return within[-1] if within else None


def named_measure(path: str) -> Measure | None:
    """Return the measure that a path such as ``measures.rmse.final`` names; None without one."""
    name = path.rpartition("measures.")[2] if "measures." in path else ""
    return MEASURES.get(name.partition(".")[0].partition(":")[0])


def _first_round(
    course: Sequence[tuple[int, float]], goal: float, measure: Measure, window: int = 1
) -> int | None:
    """Return the first round at which the mean of the last ``window`` numbers reaches ``goal``."""
    hit = rounds_to([value for _, value in course], goal, window, measure.reaches)
    return None if hit is None else course[hit - 1][0]


def of_cost(measure: str) -> tuple[str, str, float] | None:
    """Return the parts of a measure such as ``clock.to:0.6``; None for another measure.

    They are the cost, ``to`` with the target or ``at`` with an amount of the cost. Raises
    ``ValueError``, one line, for an unknown cost, or a number that is not allowed.
    """
    if (found := OF_COST.fullmatch(measure)) is None:
        return None
    cost, how, text = found.groups()
    if cost not in COSTS:
        raise ValueError(
            f"measure = {measure!r}: there is no cost {cost!r}; allowed: {', '.join(COSTS)}"
        )
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if how == "to" and not math.isfinite(number):
        raise ValueError(f"measure = {measure!r}: the target should be a number")
    if how == "at" and not 0 < number < math.inf:
        raise ValueError(f"measure = {measure!r}: the cost should be above 0")
    return cost, how, number


def fingerprint(flat: Mapping[str, Value]) -> str:
    """Return a digest that is equal for equal configurations; it identifies a recorded run."""
    return hashlib.sha256(json.dumps(chosen(flat)).encode()).hexdigest()[:16]


def completed(run: Path) -> dict[str, Any] | None:
    """Return the summary of the run in a folder, if it is complete."""
    path = run / "summary.json"
    if not path.exists():
        return None
    try:
        summary = parse_json(path.read_bytes())
        return summary if summary["status"] == "completed" else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read(folder: Path) -> dict[str, Recorded]:
    """Return the cells recorded in ``folder`` by fingerprint.

    Raises ``ValueError`` for an invalid line.
    """
    path, recorded = folder / NAME, {}
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for i, line in enumerate(lines, start=1):
        try:
            cell = _parsed(line)
        except ValueError as error:
            why = invalid(error) if isinstance(error, ValidationError) else error
            raise ValueError(f"{path}, line {i} is damaged: {why}") from error
        recorded[cell.fingerprint] = cell
    return recorded


@lru_cache(maxsize=8192)  # a record is read after each of its runs, and only grows
def _parsed(line: bytes) -> Recorded:
    return Recorded.model_validate(parse_json(line))


def gather(folder: Path, cells: Mapping[str, Flat]) -> dict[str, Recorded]:
    """Return the recorded cells, after recording each of ``cells`` with a complete run and no line.

    Such a run has just ended, or comes from another machine or an earlier release. ``cells``:
    configurations by fingerprint.
    """
    recorded = read(folder)
    for name in (name for name in cells if name not in recorded):
        if (cell := Recorded.of(cells[name], folder / RUNS / name)) is not None:
            append(folder, cell)
            recorded[name] = cell
    return recorded


def append(folder: Path, *cells: Recorded) -> None:
    """Append the cells that the record in ``folder`` lacks, and flush it to the disk.

    ``cells``: at most one of each fingerprint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / NAME, "a+b") as file:
        with contextlib.suppress(OSError):  # some file systems have no locks
            filelock.lock_descriptor(file.fileno())
        file.seek(0)
        lines, end, _ = file.read().rpartition(b"\n")
        file.truncate(len(lines + end))
        for cell in cells:
            if f'"fingerprint":"{cell.fingerprint}"'.encode() not in lines:
                file.write(cell.line())
        file.flush()
        os.fsync(file.fileno())


def _numbers(entry: Entry) -> dict[str, Any]:
    """Return the numbers of one journal entry that belong to curves, by dotted name."""
    fields = entry.model_dump(include=CURVE, exclude_unset=True)
    fields["primary"] = entry.primary_score
    known = ((name, getattr(entry, name)) for name in AS_SUMMARY)
    fields |= {name: value.as_dict() for name, value in known if value is not None}
    numbers = dotted(fields).items()
    return {name: v for name, v in numbers if v is not None and not isinstance(v, bool)}
