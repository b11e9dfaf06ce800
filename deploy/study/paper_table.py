"""``fedmosaic table``: a paper's table from recorded runs, with the paper's numbers beside ours.

A table file is an experiment file with rows and columns. A cell has the settings of ``[base]``, its
row and its column, and one run for each seed. A recorded run (``records.py``) is not repeated. Two
rows that differ only in their measure share one run.

Our number is the mean over seeds ± half of its 95 % interval.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar, final

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from common.files import write_all
from common.measures import ACCURACY
from common.parse import defaults
from deploy.report import table as rendering
from deploy.report.groups import half_width, mean_with_interval
from deploy.report.style import png
from deploy.run.preflight import counted, preflight, unused_fleet
from deploy.settings import checked, find, flatten, numbers, read_toml, unread
from deploy.study import records
from deploy.study.comparison import Comparison, Measured, page
from deploy.study.records import Flat, Recorded
from deploy.user_modules import look_in

PRIMARY = "primary."  #: prefix of measures of the primary score
MEASURE = f"{PRIMARY}final"  #: measure of a table that names none


T = TypeVar("T")


def distinct(key: str, values: list[T]) -> list[T]:
    """Return ``values``. Raises ``ValueError`` with the ``key`` if a list has a value twice."""
    if twice := [one for i, one in enumerate(values) if one in values[:i]]:
        raise ValueError(f"{key} = {values} has {twice[0]!r} more than once")
    return values


Seeds = Annotated[list[int], AfterValidator(partial(distinct, "seeds"))]
"""Distinct seeds."""


class FilePart(BaseModel):
    """A part of a file for tables, sweeps or boards; unknown keys are not allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@final
class Line(FilePart):
    """One ``[[row]]`` or ``[[column]]``."""

    name: str = Field(min_length=1)
    set: dict[str, object] = {}
    measure: str = ""
    model: str = "global"
    """For a row: its model, which replaces ``{model}`` in a measure."""
    seeds: Seeds = []
    """For a row or a column: its seeds. A row's come before a column's. Empty: the table's."""
    against: str = ""
    """For a row: another row; a note has the differences to it, seed by seed."""
    scale: float | None = None
    """For a column: factor for its numbers instead of the unit's 100."""
    better: Literal["higher", "lower", "", "as the table"] = "as the table"
    reach: str = ""
    """For a column: a row. A cell is the first round that reaches its last value, same seed."""
    rows: list[str] = []
    """For a column: its rows; other rows have no number in it. Empty: all."""
    window: Annotated[int, Field(ge=1)] = 1
    """Number of measurements whose mean must reach ``reach``; 1, a single one, as in papers."""


def _checked_format(text: str) -> str:
    try:
        format(0.5, text)
    except ValueError:
        raise ValueError(
            f'format = "{text}" is not allowed; it should be like .2f or .3g'
        ) from None
    return text


Format = Annotated[str, AfterValidator(_checked_format)]
"""Format specification of a number, ``.2f``."""


class Sheet(FilePart):
    """Keys that the files of tables and sweeps share."""

    title: str
    seeds: Seeds = Field(min_length=1)
    measure: str = MEASURE
    unit: str = "%"
    format: Format = ".2f"
    better: Literal["higher", "lower", ""] = "higher"
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _of_measure(cls, content: dict[str, object]) -> dict[str, object]:
        """Fill in the direction of a measure that the file names, such as ``measures.rmse``."""
        named = records.named_measure(str(content.get("measure", "")))
        return content if named is None else {"better": named.direction} | content


@final
class TableFile(Sheet):
    """The content of a table file."""

    remarks: str = ""
    """What the record shows beside its numbers: Markdown for its page of the documentation."""
    compare: list[str] = []
    """Rows that this page compares with every other row, seed by seed."""
    base: dict[str, object] = {}
    row: list[Line] = Field(min_length=1)
    column: list[Line] = Field(min_length=1)
    expected: dict[str, dict[str, float]] = {}

    def seeds_of(self, row: Line, column: Line) -> list[int]:
        """Return the seeds of a cell: the row's, else the column's, else the table's."""
        return row.seeds or column.seeds or self.seeds


@final
@dataclass(frozen=True)
class CellRun:
    """One run of the table: its row, column and seed, its measure, and its complete run config."""

    row: str
    column: str
    seed: int
    measure: str
    flat: Flat
    line: Line
    """The column of the table file."""

    @cached_property
    def fingerprint(self) -> str:
        return records.fingerprint(self.flat)

    def value(self, recorded: Recorded) -> float | None:
        """Return the cell's number; ∞ if the run has a target that it never reached."""
        value = recorded.measured(self.measure)
        if value is None and self.measure.startswith(TARGET) and recorded.measured(GOAL):
            return math.inf
        return value


TARGET = "rounds_to_target."  #: prefix of measures that are missing if the target is not reached
GOAL = "rounds_to_target.target"  #: measure that exists if a run has a target


def read(path: Path) -> TableFile:
    """Read a table file. Raises ``ValueError``, one line, if it is not one."""
    path = find(path, "table")
    content = read_toml(path)
    if "row" not in content:
        raise ValueError(f"{path} has no [[row]], so it is no table: fedmosaic run takes it")
    file = checked(TableFile, content, path)
    for line in (*file.row, *file.column):
        look_in(path.parent, flatten(file.base) | flatten(line.set))
    return file


def as_toml(file: TableFile) -> str:
    """Return a table as the text of its file, without the paper's numbers and remarks."""
    beside = {"row", "column", "expected", "remarks", "compare"}
    lines = {
        kind: [line.model_dump(exclude_defaults=True) for line in getattr(file, kind)]
        for kind in ("row", "column")
    }
    return tomli_w.dumps({**file.model_dump(exclude=beside), **lines})


def cells(file: TableFile) -> Iterator[CellRun]:
    """Yield every cell for every seed, row by row.

    Raises ``ValueError`` for an unknown key or row, a name given twice, or an expected number
    without a cell.
    """
    _check_names(file)
    for row, column in itertools.product(file.row, file.column):
        if column.rows and row.name not in column.rows:
            continue
        with _located(row.name, column.name):
            settings = flatten(file.base) | flatten(row.set) | flatten(column.set)
            method = str(settings.get("method", ""))
            usual = defaults(method)
            usual |= unread(method or str(usual["method"]))
            flat = counted(usual | numbers(settings, method))
        measure = row.measure or column.measure or file.measure
        measure = measure.replace("{model}", row.model)
        with _located(row.name, column.name):
            records.of_cost(measure)
        for seed in file.seeds_of(row, column):
            yield CellRun(row.name, column.name, seed, measure, {**flat, "seed": seed}, column)


def _check_names(file: TableFile) -> None:
    rows, columns = [r.name for r in file.row], [c.name for c in file.column]
    for what, names in (("row", rows), ("column", columns)):
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{what} {name!r} exists twice; every {what} needs its own name")
    for row_name, expected in file.expected.items():
        for name in expected:
            if row_name not in rows or name not in columns:
                raise ValueError(f"expected.{row_name}.{name} is no cell of the table")
    named = [(repr(c.name), "rows", name) for c in file.column for name in c.rows]
    named += [("the table", "compare", name) for name in file.compare]
    named += [(repr(c.name), "reach", c.reach) for c in file.column if c.reach]
    named += [(repr(r.name), "against", r.against) for r in file.row if r.against]
    for where, key, name in named:
        if name not in rows:
            raise ValueError(f"{where}: {key} = {name!r} is no row")


@contextmanager
def _located(row: str, column: str) -> Iterator[None]:
    """Add the row and the column to a ``ValueError`` of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {row!r}, column {column!r}: {error}") from error


def check(some: Iterable[CellRun]) -> list[str]:
    """Check that cells can run on this machine: settings, plug-ins, data, architectures, devices.

    The first seed of each row and column is checked. A run checks itself again before it starts.
    Return notes on methods whose clients do not train their fleet entries.

    Raises ``ValueError``, one line with the row and the column.
    """
    notes, firsts = list[str](), dict[tuple[str, str], CellRun]()
    for cell in some:
        firsts.setdefault((cell.row, cell.column), cell)
    for (row, column), cell in firsts.items():
        with _located(row, column):
            notes += unused_fleet(preflight(cell.flat))
    return list(dict.fromkeys(notes))


def selected_cells(
    file: TableFile, rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]
) -> list[CellRun]:
    """Return the table's cells in these rows and columns with these seeds; an empty list means all.

    Raises ``ValueError`` for a row, column or seed that the table lacks.
    """
    every, named = list(cells(file)), {"row": rows, "column": columns, "seed": seeds}
    known: dict[str, Sequence[object]] = {
        "row": [row.name for row in file.row],
        "column": [column.name for column in file.column],
        "seed": sorted({cell.seed for cell in every}),
    }
    for key, some in named.items():
        for one in some:
            if one not in known[key]:
                shown = ", ".join(repr(it) if "," in str(it) else str(it) for it in known[key])
                raise ValueError(f"--{key} {one} is not in this table; it has: {shown}")
    chosen = {key: some for key, some in named.items() if some}
    kept = [c for c in every if all(getattr(c, key) in some for key, some in chosen.items())]
    if not kept:
        raise ValueError(f"{' '.join(options(rows, columns, seeds))}: there is no such cell")
    return kept


def options(rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Return the command-line options for these rows, columns and seeds."""
    named = {"--row": rows, "--column": columns, "--seed": seeds}
    return [word for option, some in named.items() for one in some for word in (option, str(one))]


def recorded(some: Iterable[CellRun], folder: Path) -> dict[str, Recorded]:
    """Return the record in ``folder``, after adding those of ``some`` cells that are finished."""
    return records.gather(folder, {cell.fingerprint: cell.flat for cell in some})


Values = dict[tuple[str, str], dict[int, float]]
"""Numbers of cells by row and column, then by seed."""


def collect(file: TableFile, folder: Path) -> Comparison:
    """Return the table with the numbers recorded so far."""
    rows, columns = [row.name for row in file.row], [column.name for column in file.column]
    results: Values = {pair: {} for pair in itertools.product(rows, columns)}
    all_cells = list(cells(file))
    known = recorded(all_cells, folder)
    shown = {r.measure_of(c.measure) for c in all_cells if (r := known.get(c.fingerprint))}
    percent = shown <= {None} or ACCURACY in shown
    unit = "" if file.unit == "%" and not percent else file.unit
    goals = {(c.row, c.column, c.seed): c for c in all_cells}
    personal = dict[str, bool]()
    for cell in all_cells:
        if (record := known.get(cell.fingerprint)) is None:
            continue
        if cell.measure.startswith(PRIMARY):
            personal[cell.row] = personal.get(cell.row, False) or record.personal
        if cell.line.reach:
            goal = goals.get((cell.line.reach, cell.column, cell.seed))
            other = known.get(goal.fingerprint) if goal else None
            if goal is None or other is None:
                continue
            value = record.reaches(cell.measure, other, goal.measure, cell.line.window)
        else:
            value = cell.value(record)
        if value is not None:
            share = unit == "%" and record.measure_of(cell.measure) in (None, ACCURACY)
            usual, scale = 100.0 if share else 1.0, cell.line.scale
            results[cell.row, cell.column][cell.seed] = value * (usual if scale is None else scale)
    measured = {
        (row, column): Measured((*values.values(),), file.expected.get(row, {}).get(column))
        for (row, column), values in results.items()
    }
    named = {c.name: records.named_measure(c.measure) for c in file.column}
    named |= {
        c.column: found
        for c in all_cells
        if (r := known.get(c.fingerprint)) and (found := r.measure_of(c.measure)) is not ACCURACY
    }
    better_in: dict[str, str] = {name: m.direction for name, m in named.items() if m}
    better_in |= {c.name: c.better for c in file.column if c.better != "as the table"}
    notes = (*_scores(personal), *_differences(file, results), *([file.note] if file.note else []))
    digits = ".4g" if file.format == ".2f" and not percent else file.format
    layout = (unit, digits, file.better, better_in, notes)
    return Comparison(file.title, tuple(rows), tuple(columns), measured, *layout)


def _scores(personal: Mapping[str, bool]) -> Iterator[str]:
    """Yield a note if rows have the personal score; ``personal``: whether a row has it."""
    rows = [row for row, is_personal in personal.items() if is_personal]
    if rows:
        others = (
            "; the others: the server's model on its test set" if len(rows) < len(personal) else ""
        )
        yield f"Of the clients' models on their own test samples: {', '.join(rows)}{others}."


def _differences(file: TableFile, values: Values) -> Iterator[str]:
    """Yield a note for each row with ``against``, over the columns in which both are complete.

    Rows with different seeds are compared over the seeds that both have.
    """
    lines = {row.name: row for row in file.row}
    for row in (row for row in file.row if row.against):
        texts = []
        for column in file.column:
            pair = [(values[name, column.name], lines[name]) for name in (row.name, row.against)]
            if all(len(numbers) == len(file.seeds_of(line, column)) for numbers, line in pair):
                (first, _), (second, _) = pair
                differences = [first[seed] - second[seed] for seed in first if seed in second]
                if half_width(differences) is not None:
                    texts.append(f"{column.name}: {mean_with_interval(differences, file.format)}")
        if texts:
            yield f"{row.name} less {row.against}, seed by seed: {'; '.join(texts)}."


def as_json(filled: Comparison, file: TableFile) -> dict[str, object]:
    """Return the bare numbers: every cell's values by seed (None: never), and the paper's."""
    cells = []
    for (row, column), cell in filled.cells.items():
        values = [v if math.isfinite(v) else None for v in cell.values] or None
        cells.append({"row": row, "column": column, "values": values, "expected": cell.expected})
    return {"title": file.title, "seeds": file.seeds, "cells": cells}


def write(filled: Comparison, file: TableFile, folder: Path, stem: str) -> list[Path]:
    """Write Markdown, HTML, LaTeX, CSV, PNG, and the bare numbers as JSON (null: never).

    The files are in ``folder``. The CSV has a line for each cell: mean, standard deviation, half of
    the 95 % interval, seeds, the paper's number.
    """
    table = filled.table()
    texts = {
        ".md": rendering.markdown(table),
        ".html": page(filled, table),
        ".tex": rendering.latex(table),
        ".csv": rendering.csv(filled.numbers()),
        ".json": json.dumps(as_json(filled, file), indent=1),
    }
    written = write_all(folder, {stem + suffix: text for suffix, text in texts.items()})
    png(table, folder / f"{stem}.png")
    return [*written, folder / f"{stem}.png"]
