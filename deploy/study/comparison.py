"""Ours (mean ± standard deviation over seeds) beside a paper's numbers.

A cell that was not run stays visibly empty; a cell with fewer seeds than the others says so.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from deploy.report.table import Cell, Table
from deploy.report.text import NONE, clean

EXPECTED = "In parentheses: the paper's number."


@final
@dataclass(frozen=True)
class Measured:
    """``values`` in the comparison's unit, one per seed; ``expected`` is the paper's number."""

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


@final
@dataclass(frozen=True)
class Comparison:
    """Rows (mostly methods) × columns (mostly settings); absent cells count as not run.

    ``format`` is a format specification, ".2f"; ``better`` is "higher", "lower" or "" (no column's
    best is marked). ValueError for a cell outside the rows and columns, or a name given twice.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Measured]
    unit: str = "%"
    format: str = ".2f"
    better: str = "higher"
    better_in: Mapping[str, str] = field(default_factory=dict)  # for columns that differ
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for i, (what, names) in enumerate((("row", self.rows), ("column", self.columns))):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{what} {name!r} stands twice; every {what} needs its name")
            for name in (place[i] for place in self.cells):
                if name not in names:
                    raise ValueError(f"cell in {what} {name!r}; the {what}s are {', '.join(names)}")
        for better in (self.better, *self.better_in.values()):
            if better not in ("higher", "lower", ""):
                raise ValueError(f"better = {better!r}; allowed are 'higher', 'lower' and ''")

    def cell(self, row: str, column: str) -> Measured:
        return self.cells.get((row, column), Measured())

    @property
    def heading(self) -> str:
        """The title with the unit: "Table 6 (%)"."""
        return clean(f"{self.title} ({self.unit})" if self.unit else self.title)

    def best(self, column: str) -> set[str]:
        """The rows of a column's best mean, as printed: equal prints share the place."""
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
        """``82.94 ± 0.21``; with ``[2]``, the number of seeds, where others have more."""
        cell = self.cell(row, column)
        if not cell.values or cell.mean is None:
            return NONE
        if never := sum(not math.isfinite(value) for value in cell.values):
            return f"{self._number(max(cell.values))} ({never} of {len(cell.values)})"
        most = max(len(c.values) for c in self.cells.values())
        spread = "" if cell.std is None else f" ± {self._number(cell.std)}"
        seeds = "" if len(cell.values) == most else f" [{len(cell.values)}]"
        return f"{self._number(cell.mean)}{spread}{seeds}"

    def theirs(self, row: str, column: str) -> str:
        """``(83.36)``, or nothing where the paper gives no number."""
        expected = self.cell(row, column).expected
        return "" if expected is None else f"({self._number(expected)})"

    def footnotes(self) -> list[str]:
        """What the marks mean, as far as they occur, then the table's own notes."""
        cells = list(self.cells.values())
        counts = {len(c.values) for c in cells if c.values}
        out = []
        if any(c.expected is not None for c in cells):
            out.append(EXPECTED)
        if counts and max(counts) > 1:
            out.append(f"Mean ± standard deviation over {max(counts)} seeds.")
        if len(counts) > 1:
            out.append("In square brackets: the number of seeds, where it is smaller.")
        if any(math.inf in c.values for c in cells):
            out.append("∞ (n of m): n of m seeds never reach it.")
        if len(cells) < len(self.rows) * len(self.columns) or any(not c.values for c in cells):
            out.append(f"{NONE} not run.")
        return [*out, *(clean(note, 2000) for note in self.notes)]

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "∞" if value > 0 else "not finite"
        return format(value, self.format)

    def table(self) -> Table:
        """Rows and columns as the paper has them."""
        best = {column: self.best(column) for column in self.columns}
        rows: list[list[str | Cell]] = []
        for row in self.rows:
            told = [(self.ours(row, c), self.theirs(row, c), row in best[c]) for c in best]
            rows.append([clean(row), *(Cell(*cell) for cell in told)])
        header = ["", *map(clean, self.columns)]
        return Table(header, rows, title=self.heading, notes=self.footnotes())

    def numbers(self) -> Table:
        """A line for each cell, the numbers alone, for a spreadsheet; empty where there is none."""
        header = ("row", "column", "mean", "std", "seeds", "paper")
        rows = []
        for row, column in itertools.product(self.rows, self.columns):
            cell = self.cell(row, column)
            numbers = (cell.mean, cell.std, len(cell.values), cell.expected)
            rows.append([row, column, *("" if n is None else f"{n:.10g}" for n in numbers)])
        return Table(header, rows, align="llr")
