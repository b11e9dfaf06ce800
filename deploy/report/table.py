"""A paper's table: ours (mean ± standard deviation over seeds) beside the paper's number.

One ``Table``, four renderings: for the terminal, Markdown, HTML and PNG. A cell that was not run
stays visibly empty; a cell with fewer seeds than the others says so.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import final

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from deploy.report.clean import clean

NOT_RUN = "–"
EXPECTED = "In parentheses: the paper's number."


@final
@dataclass(frozen=True)
class Cell:
    """``values`` in the table's unit, one per seed; None or () where the cell was not run."""

    values: tuple[float, ...] | None = None
    expected: float | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n − 1); None below two seeds."""
        several = self.values is not None and len(self.values) > 1
        finite = several and all(math.isfinite(value) for value in self.values or ())
        return statistics.stdev(self.values or ()) if finite else None


@final
@dataclass(frozen=True)
class Table:
    """Rows (mostly methods) × columns (mostly settings); absent cells count as not run.

    ``format`` is a format specification, ".2f"; ``better`` is "higher", "lower" or "" (no column's
    best is marked). ValueError for a cell outside the rows and columns, or a name given twice.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    unit: str = "%"
    format: str = ".2f"
    better: str = "higher"
    better_in: Mapping[str, str] = field(default_factory=dict)  # for columns that differ
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for what, names in (("row", self.rows), ("column", self.columns)):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{what} {name!r} stands twice; every {what} needs its name")
        for row, column in self.cells:
            if row not in self.rows:
                raise ValueError(f"cell in row {row!r}; the rows are {', '.join(self.rows)}")
            if column not in self.columns:
                raise ValueError(
                    f"cell in column {column!r}; the columns are {', '.join(self.columns)}"
                )
        for better in (self.better, *self.better_in.values()):
            if better not in ("higher", "lower", ""):
                raise ValueError(f"better = {better!r}; allowed are 'higher', 'lower' and ''")

    def cell(self, row: str, column: str) -> Cell:
        return self.cells.get((row, column), Cell())

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
            return NOT_RUN
        if never := sum(not math.isfinite(value) for value in cell.values):
            return f"{self._number(max(cell.values))} ({never} of {len(cell.values)})"
        most = max(len(c.values or ()) for c in self.cells.values())
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
        if any(math.inf in (c.values or ()) for c in cells):
            out.append("∞ (n of m): n of m seeds never reach it.")
        if len(cells) < len(self.rows) * len(self.columns) or any(not c.values for c in cells):
            out.append(f"{NOT_RUN} not run.")
        return [*out, *(clean(note, 2000) for note in self.notes)]

    def _number(self, value: float) -> str:
        if not math.isfinite(value):
            return "∞" if value > 0 else "not finite"
        return format(value, self.format)


def render(table: Table, width: int = 10_000) -> list[rich_table.Table]:
    """For the terminal: as many tables below each other as ``width`` characters demand.

    Title above the first, footnotes below the last.
    """
    blocks: list[list[str]] = [[]]
    for column in table.columns:
        if blocks[-1] and _measured(_block(table, [*blocks[-1], column])) > width:
            blocks.append([])
        blocks[-1].append(column)
    drawn = [_block(table, block) for block in blocks]
    drawn[0].title = Text(table.heading)
    drawn[-1].caption = Text("\n".join(table.footnotes()))
    return drawn


def _measured(drawn: rich_table.Table) -> int:
    return Console(width=10_000).measure(drawn).maximum


def _block(table: Table, columns: Sequence[str]) -> rich_table.Table:
    out = rich_table.Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    out.add_column("")
    for column in columns:
        out.add_column(Text(clean(column)), justify="right")
    best = {column: table.best(column) for column in columns}
    for row in table.rows:
        cells = []
        for column in columns:
            text = Text(table.ours(row, column), style="bold" if row in best[column] else "")
            theirs = table.theirs(row, column)
            cells.append(text.append(f" {theirs}", style="not bold dim") if theirs else text)
        out.add_row(Text(clean(row)), *cells)
    return out


def markdown(table: Table) -> str:
    """A GitHub-flavoured Markdown table under its title, footnotes below."""

    def cell(row: str, column: str) -> str:
        ours = table.ours(row, column)
        ours = f"**{ours}**" if row in table.best(column) else ours
        return f"{ours} {table.theirs(row, column)}".strip()

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [f"**{_plain(table.heading)}**", ""]
    lines.append(line(["", *(_plain(column) for column in table.columns)]))
    lines.append(f"|:--|{'--:|' * len(table.columns)}")
    for row in table.rows:
        lines.append(line([_plain(row), *(cell(row, column) for column in table.columns)]))
    notes = [_plain(note) for note in table.footnotes()]
    return "\n".join([*lines, *([""] if notes else []), "  \n".join(notes)]).rstrip() + "\n"


def html(table: Table) -> str:
    """A ``<table>`` alone, classes for the page's CSS; every name escaped."""

    def cell(row: str, column: str) -> str:
        mark = ' class="n best"' if row in table.best(column) else ' class="n"'
        theirs = table.theirs(row, column)
        small = f" <small>{escape(theirs)}</small>" if theirs else ""
        return f"<td{mark}>{escape(table.ours(row, column))}{small}</td>"

    head = "".join(f'<th scope="col" class="n">{escape(clean(c))}</th>' for c in table.columns)
    body = "\n".join(
        f'<tr><th scope="row">{escape(clean(row))}</th>'
        + "".join(cell(row, column) for column in table.columns)
        + "</tr>"
        for row in table.rows
    )
    notes = "<br>".join(escape(note) for note in table.footnotes())
    foot = f'<tfoot><tr><td colspan="{len(table.columns) + 1}">{notes}</td></tr></tfoot>\n'
    return (
        f"<table>\n<caption>{escape(table.heading)}</caption>\n"
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        f"{foot if notes else ''}</table>\n"
    )


def png(table: Table, path: Path) -> None:
    """An image as papers set tables: three rules, ours in ink and the paper's number in grey."""
    from matplotlib.figure import Figure

    from deploy.report.figures import style
    from deploy.report.palette import INK, MUTED, PAPER

    em, line, pad = 0.083, 0.3, 0.2  # inches: a character, a row, the margin
    first = em * max(len(clean(r)) for r in ("", *table.rows)) + 0.2
    ours = [max(len(table.ours(r, c)) for r in table.rows) * em for c in table.columns]
    theirs = [max(len(table.theirs(r, c)) for r in table.rows) * em for c in table.columns]
    widths = [
        max(a + b, em * len(clean(c))) + 0.25
        for a, b, c in zip(ours, theirs, table.columns, strict=True)
    ]
    notes = table.footnotes()
    least = em * 0.95 * max(len(text) for text in (table.heading, *notes))
    width = max(first + sum(widths), least) + 2 * pad
    height = line * (len(table.rows) + 2) + 0.22 * len(notes) + 3 * pad
    with style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, width), ylim=(height, 0))

        def write(x: float, y: float, text: str, ha: str, colour: str, bold: bool = False) -> None:
            weight = "bold" if bold else "normal"
            axes.text(x, y, text, ha=ha, va="center", color=colour, weight=weight)

        def rule(y: float, thick: float) -> None:
            axes.plot([pad, width - pad], [y, y], color=INK, linewidth=thick)

        write(pad, pad + 0.1, table.heading, "left", INK, bold=True)
        top = pad + line
        rule(top, 1.2)
        rule(top + line, 0.6)
        extra = (width - 2 * pad - first - sum(widths)) / len(widths) if widths else 0.0
        right = pad + first
        for i, column in enumerate(table.columns):
            right += widths[i] + extra
            write(right, top + line / 2, clean(column), "right", MUTED)
            for j, row in enumerate(table.rows):
                y = top + line * (j + 1.5)
                best = row in table.best(column)
                write(right, y, table.theirs(row, column), "right", MUTED)
                write(right - theirs[i], y, table.ours(row, column), "right", INK, bold=best)
        for j, row in enumerate(table.rows):
            write(pad, top + line * (j + 1.5), clean(row), "left", INK)
        bottom = top + line * (len(table.rows) + 1)
        rule(bottom, 1.2)
        for i, note in enumerate(notes):
            write(pad, bottom + 0.2 + 0.22 * i, note, "left", MUTED)
        figure.savefig(path, format="png", dpi=200, facecolor=PAPER)


def _plain(text: str) -> str:
    """Text that Markdown prints as it stands."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", clean(text, 500))
