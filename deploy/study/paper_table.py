"""``fedmosaic table``: a paper's table from recorded runs, with the paper's numbers beside ours.

A table file is an experiment file with rows and columns. A cell has the settings of ``[base]``, its
row and its column, and one run for each seed. A recorded run (``records.py``) is not repeated. Two
rows that differ only in their measure share one run.

Our number is the mean over seeds ± half of its 95 % interval.
"""

import itertools
import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from common.files import write_atomically
from common.parse import defaults
from deploy.report import table as rendering
from deploy.report.groups import half_width, mean_with_interval
from deploy.report.style import Page, png, render_sortable, single
from deploy.report.table import NONE, Cell, Table, clean
from deploy.run.preflight import counted, preflight, unused_fleet
from deploy.settings import checked, find, flatten, numbers, read_toml, unread
from deploy.study import records
from deploy.study.records import Flat, Recorded
from deploy.user_modules import look_in

PRIMARY = "primary."  #: prefix of measures of the primary score
MEASURE = f"{PRIMARY}final"  #: measure of a table that names none


def check_distinct(key: str, values: Sequence[object]) -> None:
    """Raise ``ValueError`` if a list has a value twice."""
    if twice := [one for i, one in enumerate(values) if one in values[:i]]:
        raise ValueError(f"{key} = {values} has {twice[0]!r} more than once")


def _checked_seeds(seeds: list[int]) -> list[int]:
    check_distinct("seeds", seeds)
    return seeds


Seeds = Annotated[list[int], AfterValidator(_checked_seeds)]
"""Distinct seeds."""


class Line(BaseModel):
    """One ``[[row]]`` or ``[[column]]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


@final
class TableFile(BaseModel):
    """The content of a table file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    seeds: Seeds = Field(min_length=1)
    measure: str = MEASURE
    unit: str = "%"
    format: Format = ".2f"
    better: Literal["higher", "lower", ""] = "higher"
    note: str = ""
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
class Measured:
    """One cell: ``values`` in the comparison's unit, one per seed, and the paper's number."""

    values: tuple[float, ...] = ()
    expected: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n − 1); None below two seeds."""
        several = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if several else None

    @property
    def interval(self) -> float | None:
        """Half of the mean's 95 % interval; None below two seeds."""
        return half_width(self.values)


@final
@dataclass(frozen=True)
class Comparison:
    """A table of rows (mostly methods) × columns (mostly settings); absent cells are not run.

    ``format`` is a format specification, ".2f"; ``better`` is "higher", "lower" or "" (the best of
    a column is not marked).
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Measured]
    unit: str = "%"
    format: str = ".2f"
    better: str = "higher"
    better_in: Mapping[str, str] = field(default_factory=dict)  # for columns that differ
    notes: tuple[str, ...] = ()

    def cell(self, row: str, column: str) -> Measured:
        return self.cells.get((row, column), Measured())

    def best(self, column: str) -> set[str]:
        """Return the rows with a column's best mean; means that are printed alike are equal."""
        better = self.better_in.get(column, self.better)
        if not better:
            return set()
        means = {r: self.cell(r, column).mean for r in self.rows}
        finite = {r: m for r, m in means.items() if m is not None and math.isfinite(m)}
        if len(finite) < 2:
            return set()
        top = (max if better == "higher" else min)(finite.values())
        return {r for r, m in finite.items() if self._number(m) == self._number(top)}

    def ours(self, row: str, column: str) -> str:
        """Return ``82.94 ± 0.21``, the mean and half of its interval.

        ``[2]``, the number of seeds, follows if other cells have more.
        """
        cell = self.cell(row, column)
        if not cell.values or cell.mean is None:
            return NONE
        if never := sum(not math.isfinite(value) for value in cell.values):
            return f"{self._number(max(cell.values))} ({never} of {len(cell.values)})"
        most = max(len(c.values) for c in self.cells.values())
        spread = "" if cell.interval is None else f" ± {self._number(cell.interval)}"
        seeds = "" if len(cell.values) == most else f" [{len(cell.values)}]"
        return f"{self._number(cell.mean)}{spread}{seeds}"

    def theirs(self, row: str, column: str) -> str:
        """Return the paper's number, ``(83.36)``; an empty text if there is none."""
        expected = self.cell(row, column).expected
        return "" if expected is None else f"({self._number(expected)})"

    def footnotes(self) -> list[str]:
        """Return explanations of the marks that occur, then the table's own notes."""
        cells = list(self.cells.values())
        counts = {len(c.values) for c in cells if c.values}
        out = []
        if any(c.expected is not None for c in cells):
            out.append("In parentheses: the paper's number.")
        if counts and max(counts) > 1:
            out.append(f"Mean of {max(counts)} seeds ± half of its 95 % interval (Student's t).")
        elif counts:
            out.append("One seed, so no interval and no order.")
        if len(counts) > 1:
            out.append("In square brackets: the number of seeds, where it is smaller.")
        if any(math.inf in c.values for c in cells):
            out.append("∞ (n of m): n of m seeds never reach it.")
        if len(cells) < len(self.rows) * len(self.columns) or any(not c.values for c in cells):
            out.append(f"{NONE} not run, or not measured.")
        return [*out, *(clean(note, 2000) for note in self.notes)]

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "∞" if value > 0 else "not finite"
        return format(value, self.format)

    def table(self) -> Table:
        """Return rows and columns as in the paper."""
        best = {column: self.best(column) for column in self.columns}
        rows: list[list[str | Cell]] = []
        for row in self.rows:
            cells = [Cell(self.ours(row, c), self.theirs(row, c), row in best[c]) for c in best]
            rows.append([clean(row), *cells])
        header = ["", *map(clean, self.columns)]
        title = clean(f"{self.title} ({self.unit})" if self.unit else self.title)
        return Table(header, rows, title=title, notes=self.footnotes())

    def numbers(self) -> Table:
        """Return a row of bare numbers for each cell, for a spreadsheet; missing ones are empty."""
        header = ("row", "column", "mean", "std", "interval", "seeds", "paper")
        rows = []
        for row, column in itertools.product(self.rows, self.columns):
            cell = self.cell(row, column)
            numbers = (cell.mean, cell.std, cell.interval, len(cell.values), cell.expected)
            rows.append([row, column, *("" if n is None else f"{n:.10g}" for n in numbers)])
        return Table(header, rows, align="llr")


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
    path = find(path)
    content = read_toml(path)
    if "row" not in content:
        raise ValueError(f"{path} has no [[row]], so it is no table: fedmosaic run takes it")
    file = checked(TableFile, content, path)
    for line in (*file.row, *file.column):
        look_in(path.parent, flatten(file.base) | flatten(line.set))
    return file


def as_toml(file: TableFile) -> str:
    """Return a table as the text of its file, without the paper's numbers and remarks."""

    def value(of: object) -> str:
        if isinstance(of, dict):
            return f"{{ {', '.join(pairs(of))} }}" if of else "{}"
        return json.dumps(of, ensure_ascii=False)

    def pairs(values: Mapping[str, object]) -> list[str]:
        return [f"{json.dumps(key)} = {value(of)}" for key, of in values.items()]

    beside = {"base", "row", "column", "expected", "remarks", "compare"}
    lines = pairs(file.model_dump(exclude=beside))
    lines += ["", "[base]", *pairs(file.base)]
    for kind in ("row", "column"):
        for line in getattr(file, kind):
            lines += ["", f"[[{kind}]]", *pairs(line.model_dump(exclude_defaults=True))]
    return "\n".join([*lines, ""])


def cells(file: TableFile) -> Iterator[CellRun]:
    """Yield every cell for every seed, row by row.

    Raises ``ValueError`` for an unknown key or row, a name given twice, or an expected number
    without a cell.
    """
    rows, columns = [r.name for r in file.row], [c.name for c in file.column]
    for what, names in (("row", rows), ("column", columns)):
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{what} {name!r} exists twice; every {what} needs its own name")
    for row_name, expected in file.expected.items():
        for name in expected:
            if row_name not in rows or name not in columns:
                raise ValueError(f"expected.{row_name}.{name} is no cell of the table")
    named = [(repr(column.name), "rows", column.rows) for column in file.column]
    for where, key, some in (*named, ("the table", "compare", file.compare)):
        for name in some:
            if name not in rows:
                raise ValueError(f"{where}: {key} = {name!r} is no row")
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
        for line, key, name in ((column, "reach", column.reach), (row, "against", row.against)):
            if name and name not in rows:
                raise ValueError(f"{line.name!r}: {key} = {name!r} is no row")
        for seed in file.seeds_of(row, column):
            yield CellRun(row.name, column.name, seed, measure, {**flat, "seed": seed}, column)


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


def part(
    file: TableFile, rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]
) -> list[CellRun]:
    """Return the table's cells in these rows and columns with these seeds; an empty list means all.

    Raises ``ValueError`` for a row, column or seed that the table lacks.
    """
    every = list(cells(file))
    _check("--row", rows, [row.name for row in file.row])
    _check("--column", columns, [column.name for column in file.column])
    _check("--seed", seeds, sorted({cell.seed for cell in every}))
    kept = [
        cell
        for cell in every
        if cell.row in (rows or [cell.row])
        and cell.column in (columns or [cell.column])
        and cell.seed in (seeds or [cell.seed])
    ]
    if not kept:
        raise ValueError(f"{' '.join(options(rows, columns, seeds))}: there is no such cell")
    return kept


def _check(option: str, named: Sequence[object], there: Sequence[object]) -> None:
    for one in named:
        if one not in there:
            known = ", ".join(repr(it) if "," in str(it) else str(it) for it in there)
            raise ValueError(f"{option} {one} is not in this table; it has: {known}")


def options(rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Return the command-line options for these rows, columns and seeds."""
    named = {"--row": rows, "--column": columns, "--seed": seeds}
    return [word for option, some in named.items() for one in some for word in (option, str(one))]


def run(
    todo: Sequence[CellRun],
    folder: Path,
    launch: Callable[[CellRun, Path], None],
    on_cell: Callable[[int, int, CellRun, bool], None],
) -> None:
    """Run and record the cells that are not recorded yet, by this process or another.

    ``launch(cell, folder)`` runs one; ``on_cell(i, of, cell, recorded)`` is called before each. The
    client states of a finished cell are deleted.
    """
    known = recorded(todo, folder)
    for i, cell in enumerate(todo, start=1):
        if cell.fingerprint not in known:
            known = recorded([cell], folder)
        on_cell(i, len(todo), cell, cell.fingerprint in known)
        if cell.fingerprint not in known:
            place = folder / records.RUNS / cell.fingerprint
            launch(cell, place)
            clear(place)
            known = recorded([cell], folder)


def clear(place: Path) -> None:
    """Delete the client states and the checkpoint of a cell that has ended in ``place``."""
    shutil.rmtree(place / "state", ignore_errors=True)
    shutil.rmtree(place / "uploads", ignore_errors=True)
    (place / "checkpoint.safetensors").unlink(missing_ok=True)


def recorded(some: Iterable[CellRun], folder: Path) -> dict[str, Recorded]:
    """Return the record in ``folder``, after adding those of ``some`` cells that are finished."""
    return records.gather(folder, {cell.fingerprint: cell.flat for cell in some})


def missing(some: Sequence[CellRun], folder: Path) -> list[CellRun]:
    """Return those of ``some`` cells that are not recorded."""
    known = recorded(some, folder)
    return [cell for cell in some if cell.fingerprint not in known]


def collect(file: TableFile, folder: Path) -> Comparison:
    """Return the table with the numbers recorded so far."""
    rows, columns = [row.name for row in file.row], [column.name for column in file.column]
    results: dict[tuple[str, str], list[float]] = {(r, c): [] for r in rows for c in columns}
    all_cells, usual = list(cells(file)), 100.0 if file.unit == "%" else 1.0
    known = recorded(all_cells, folder)
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
            scale = usual if cell.line.scale is None else cell.line.scale
            results[cell.row, cell.column].append(value * scale)
    measured = {
        (row, column): Measured(tuple(values), file.expected.get(row, {}).get(column))
        for (row, column), values in results.items()
    }
    better_in = {c.name: c.better for c in file.column if c.better != "as the table"}
    notes = (*_scores(personal), *_differences(file, results), *([file.note] if file.note else []))
    layout = (file.unit, file.format, file.better, better_in, notes)
    return Comparison(file.title, tuple(rows), tuple(columns), measured, *layout)


def _scores(personal: Mapping[str, bool]) -> Iterator[str]:
    """Yield a note if rows have the personal score; ``personal``: whether a row has it."""
    rows = [row for row, is_personal in personal.items() if is_personal]
    if rows:
        others = (
            "; the others: the server's model on its test set" if len(rows) < len(personal) else ""
        )
        yield f"Of the clients' models on their own test samples: {', '.join(rows)}{others}."


def _differences(file: TableFile, values: Mapping[tuple[str, str], list[float]]) -> Iterator[str]:
    """Yield a note for each row with ``against``, over the columns in which both are complete.

    Rows with different seeds are compared over the seeds that both have.
    """
    lines = {row.name: row for row in file.row}
    for row in (row for row in file.row if row.against):
        pair, parts = (row.name, row.against), []
        for column in file.column:
            seeds = {name: file.seeds_of(lines[name], column) for name in pair}
            if all(len(values[name, column.name]) == len(seeds[name]) for name in pair):
                first, second = (
                    dict(zip(seeds[name], values[name, column.name], strict=True)) for name in pair
                )
                differences = [first[seed] - second[seed] for seed in first if seed in second]
                if half_width(differences) is not None:
                    parts.append(f"{column.name}: {mean_with_interval(differences, file.format)}")
        if parts:
            yield f"{row.name} less {row.against}, seed by seed: {'; '.join(parts)}."


def as_json(filled: Comparison, file: TableFile) -> dict[str, object]:
    """Return the bare numbers: every cell's values by seed (None: never), and the paper's."""
    cells = []
    for (row, column), cell in filled.cells.items():
        values = [v if math.isfinite(v) else None for v in cell.values] or None
        cells.append({"row": row, "column": column, "values": values, "expected": cell.expected})
    return {"title": file.title, "seeds": file.seeds, "cells": cells}


def page(filled: Comparison, table: Table) -> str:
    """Return the page of a table, in the design of reports, with rows that can be sorted."""
    cells = filled.cells.values()
    left = sum(not cell.values for cell in cells)
    shown = Table(table.header, table.rows, table.align, notes=table.notes)
    return render_sortable(
        Page(
            title=table.title,
            subtitle="Means over seeds ± half of the 95 % interval, beside the paper's numbers",
            state="open" if left else "done",
            pill=f"{left} of {len(cells)} cells missing" if left else "complete",
            tiles=(),
            notes=(),
            sections=[single("Results", table=shown)],
        )
    )


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
    for suffix, text in texts.items():
        write_atomically(folder / (stem + suffix), text.encode())
    png(table, folder / f"{stem}.png")
    return [folder / (stem + suffix) for suffix in (*texts, ".png")]
