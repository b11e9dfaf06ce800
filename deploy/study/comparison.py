"""Numbers of a table's cells beside the paper's, and how they are shown.

A cell shows the mean over its seeds ± half of its 95 % interval, and the paper's number.
"""

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from deploy.report.groups import half_width
from deploy.report.style import Page, render_sortable, single
from deploy.report.table import NONE, Cell, Table, clean


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
        """Return the numbers of a cell; empty if it is absent."""
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
        most, few = max(counts, default=0), len(cells) < len(self.rows) * len(self.columns)
        notes = [
            (any(c.expected is not None for c in cells), "In parentheses: the paper's number."),
            (most > 1, f"Mean of {most} seeds ± half of its 95 % interval (Student's t)."),
            (most == 1, "One seed, so no interval and no order."),
            (len(counts) > 1, "In square brackets: the number of seeds, where it is smaller."),
            (any(math.inf in c.values for c in cells), "∞ (n of m): n of m seeds never reach it."),
            (few or any(not c.values for c in cells), f"{NONE} not run, or not measured."),
        ]
        return [*(note for shown, note in notes if shown), *(clean(n, 2000) for n in self.notes)]

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
            sections=[single("Results", table=shown)],
        )
    )
