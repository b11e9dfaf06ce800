"""A table as data, and its renderings: terminal, Markdown, HTML, LaTeX, CSV and a picture.

The texts of a table are printable (``text.clean``). Each rendering prints them as they stand,
whatever they mean in that language.
"""

from __future__ import annotations

import csv as separated
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from markupsafe import Markup
from matplotlib.figure import Figure
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from deploy.report.style import INK, MUTED, PAPER, style

_MARKDOWN = re.compile(r"([\\`*_{}<>#|~]|\](?=[(:]))")
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"|": r"\textbar{}", "[": "{[}", "*": "{*}"}  # the last two mean something after \\
    | {"–": "--", "…": r"\ldots{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "∞": r"$\infty$", "·": r"$\cdot$"}
    | {"⌊": r"$\lfloor$", "⌋": r"$\rfloor$", "α": r"$\alpha$", "β": r"$\beta$"}
    | {"γ": r"$\gamma$", "λ": r"$\lambda$", "μ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$"}
)


@final
@dataclass(frozen=True)
class Cell:
    """``aside`` follows the text in grey; the ``best`` of a column is bold; ``dot`` is the series
    whose colour marks the cell on a page."""

    text: str
    aside: str = ""
    best: bool = False
    dot: int | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.aside}".strip()


@final
@dataclass(frozen=True)
class Table:
    """``align`` has "l" or "r" for each column, the last letter for all that follow. A first column
    without a name holds the names of the rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    align: str = "lr"
    title: str = ""
    notes: Sequence[str] = ()

    def flush(self, column: int) -> str:
        """ "l" or "r"."""
        return self.align[min(column, len(self.align) - 1)]

    def cells(self) -> list[list[Cell]]:
        """The rows with every text as a cell."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]


def terminal(table: Table, width: int = 10_000, *, ruled: bool = True) -> list[rich_table.Table]:
    """As many tables below each other as ``width`` characters demand, each with the first column.

    Title above the first, notes below the last; ``ruled`` with a line below the header.
    """
    blocks: list[list[int]] = [[]]
    for column in range(1, len(table.header)):
        if blocks[-1] and _measured(_block(table, [*blocks[-1], column], ruled)) > width:
            blocks.append([])
        blocks[-1].append(column)
    drawn = [_block(table, block, ruled) for block in blocks]
    drawn[0].title = Text(table.title) if table.title else None
    drawn[-1].caption = Text("\n".join(table.notes)) if table.notes else None
    return drawn


def _measured(drawn: rich_table.Table) -> int:
    return Console(width=10_000).measure(drawn).maximum


def _block(table: Table, columns: Sequence[int], ruled: bool) -> rich_table.Table:
    out = rich_table.Table(
        box=box.SIMPLE_HEAD if ruled else None,
        pad_edge=ruled,
        header_style="table.header" if ruled else "bold",
        title_justify="left",
        caption_justify="left",
    )
    for i in (0, *columns):
        right = table.flush(i) == "r"
        out.add_column(
            Text(table.header[i]),
            justify="right" if right else "left",
            overflow="ellipsis" if ruled else "fold",
            no_wrap=not ruled and i == 0,
        )
    for row in table.cells():
        texts = []
        for cell in (row[i] for i in (0, *columns)):
            text = Text(cell.text, style="bold" if cell.best else "")
            texts.append(text.append(f" {cell.aside}", "not bold dim") if cell.aside else text)
        out.add_row(*texts)
    return out


def markdown(table: Table) -> str:
    """A GitHub-flavoured table under its title, notes below."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def cell(of: Cell) -> str:
        text = f"**{_plain(of.text)}**" if of.best else _plain(of.text)
        return f"{text} {_plain(of.aside)}".strip()

    marks = "|".join("--:" if table.flush(i) == "r" else ":--" for i in range(len(table.header)))
    lines = [f"**{_plain(table.title)}**", ""] if table.title else []
    lines += [line([_plain(name) for name in table.header]), f"|{marks}|"]
    lines += [line([cell(c) for c in row]) for row in table.cells()]
    lines += ["", "  \n".join(_plain(note) for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)


def html(table: Table) -> Markup:
    """A ``<table>`` alone, with classes for the page's CSS."""
    n = [Markup(' class="n"') if table.flush(i) == "r" else "" for i in range(len(table.header))]
    named = table.header[0] == ""
    heads = [
        Markup('<th scope="col"{}>{}</th>').format(n[i], h) for i, h in enumerate(table.header)
    ]
    heads[0] = Markup("<td></td>") if named else heads[0]
    lines = [Markup("<table>")]
    lines += [Markup("<caption>{}</caption>").format(table.title)] if table.title else []
    lines += [Markup("<thead><tr>{}</tr></thead>\n<tbody>").format(Markup("").join(heads))]
    for row in table.cells():
        cells = [
            Markup('<th scope="row">{}</th>').format(c.text)
            if named and not i
            else Markup("<td{}>{}{}{}</td>").format(_marked(n[i], c), _dot(c), c.text, _small(c))
            for i, c in enumerate(row)
        ]
        lines.append(Markup("<tr>{}</tr>").format(Markup("").join(cells)))
    lines.append(Markup("</tbody>"))
    if table.notes:
        foot = '<tfoot><tr><td colspan="{}">{}</td></tr></tfoot>'
        lines.append(Markup(foot).format(len(table.header), Markup("<br>").join(table.notes)))
    return Markup("\n").join([*lines, Markup("</table>\n")])


def _marked(numeric: str, cell: Cell) -> Markup:
    names = " ".join(["n"] * bool(numeric) + ["best"] * cell.best)
    return Markup(' class="{}"').format(names) if names else Markup("")


def _dot(cell: Cell) -> Markup:
    dot = Markup('<i class="dot" style="background:var(--c{})"></i>')
    return Markup("") if cell.dot is None else dot.format(cell.dot % 8)


def _small(cell: Cell) -> Markup:
    return Markup(" <small>{}</small>").format(cell.aside) if cell.aside else Markup("")


def latex(table: Table) -> str:
    r"""A ``table`` with booktabs' rules: ``\usepackage{booktabs}``."""

    def cell(of: Cell) -> str:
        text = of.text.translate(_LATEX)
        text = rf"\textbf{{{text}}}" if of.best else text
        return f"{text} {of.aside.translate(_LATEX)}".strip()

    lines = [r"\begin{table}", r"\centering"]
    lines += [rf"\caption{{{table.title.translate(_LATEX)}}}"] if table.title else []
    columns = "".join(table.flush(i) for i in range(len(table.header)))
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(name.translate(_LATEX) for name in table.header) + r" \\"]
    lines += [r"\midrule", *(" & ".join(map(cell, row)) + r" \\" for row in table.cells())]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {note.translate(_LATEX)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def csv(table: Table) -> str:
    """Header and rows, without title and notes."""
    out = io.StringIO()
    separated.writer(out, lineterminator="\n").writerows([table.header, *table.rows])
    return out.getvalue()


def png(table: Table, path: Path) -> None:
    """An image as papers set tables: three rules, texts in ink and asides in grey."""
    rows, notes = table.cells(), table.notes
    em, line, pad = 0.083, 0.3, 0.2  # inches: a character, a row, the margin
    first = em * max(len(row[0].text) for row in rows) + 0.2
    columns = list(zip(*rows, strict=True))[1:]
    aside = [em * max(len(cell.aside) for cell in column) for column in columns]
    widths = [
        max(em * max(len(cell.text) for cell in column) + grey, em * len(name)) + 0.25
        for column, grey, name in zip(columns, aside, table.header[1:], strict=True)
    ]
    least = em * 0.95 * max(len(text) for text in (table.title, *notes))
    width = max(first + sum(widths), least) + 2 * pad
    height = line * (len(rows) + 2) + 0.22 * len(notes) + 3 * pad
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

        write(pad, pad + 0.1, table.title, "left", INK, bold=True)
        top = pad + line
        rule(top, 1.2)
        rule(top + line, 0.6)
        extra = (width - 2 * pad - first - sum(widths)) / len(widths) if widths else 0.0
        right = pad + first
        for name, column, room, grey in zip(table.header[1:], columns, widths, aside, strict=True):
            right += room + extra
            write(right, top + line / 2, name, "right", MUTED)
            for j, cell in enumerate(column):
                y = top + line * (j + 1.5)
                write(right, y, cell.aside, "right", MUTED)
                write(right - grey, y, cell.text, "right", INK, bold=cell.best)
        for j, row in enumerate(rows):
            write(pad, top + line * (j + 1.5), row[0].text, "left", INK)
        bottom = top + line * (len(rows) + 1)
        rule(bottom, 1.2)
        for i, note in enumerate(notes):
            write(pad, bottom + 0.2 + 0.22 * i, note, "left", MUTED)
        figure.savefig(path, format="png", dpi=200, facecolor=PAPER)
