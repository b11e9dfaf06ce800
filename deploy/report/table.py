"""Formats of numbers (93.1 %, 4.20 MB, 3 min 20 s, 1,234; a dash for a missing one) and tables.

Model names, class names, metric names and failure reasons come from clients. A terminal executes
escape sequences, so ``clean`` replaces control characters. Each renderer escapes the texts of a
table, so that they appear literally.
"""

import csv as separated
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

NONE = "–"
HERE = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_MARKDOWN = re.compile(r"([\\`*_{}<>#|~]|\](?=[(:]))")
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"|": r"\textbar{}", "[": "{[}", "*": "{*}"}  # the last two are special after \\
    | {"–": "--", "…": r"\ldots{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "∞": r"$\infty$", "·": r"$\cdot$"}
    | {"⌊": r"$\lfloor$", "⌋": r"$\rfloor$", "α": r"$\alpha$", "β": r"$\beta$"}
    | {"γ": r"$\gamma$", "λ": r"$\lambda$", "μ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$"}
)


@final
@dataclass(frozen=True)
class Cell:
    """One cell: ``aside`` follows the text in grey, the ``best`` of a column is bold, ``dot`` is
    the series whose colour marks the cell on a page."""

    text: str
    aside: str = ""
    best: bool = False
    dot: int | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.aside}".strip()


@final
@dataclass(frozen=True)
class Table:
    """A table of texts. ``align`` has "l" or "r" for each column; the last letter also applies to
    all further columns. A first column without a name holds the names of the rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    align: str = "lr"
    title: str = ""
    notes: Sequence[str] = ()

    def right(self, column: int) -> bool:
        """Return whether a column is right-aligned."""
        return self.align[min(column, len(self.align) - 1)] == "r"

    def cells(self) -> list[list[Cell]]:
        """Return the rows with every text as a cell."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]

    def records(self) -> list[dict[str, str]]:
        """Return a dictionary for each row, with the header's texts as keys."""
        return [dict(zip(self.header, map(str, row), strict=True)) for row in self.rows]


def terminal(table: Table, width: int = 10_000, *, ruled: bool = True) -> list[rich_table.Table]:
    """Split a table into tables of at most ``width`` characters, each with the first column.

    The title is above the first, the notes are below the last. ``ruled``: a line below the header.
    """
    blocks: list[list[int]] = [[0]]
    for column in range(1, len(table.header)):
        wider = _block(table, [*blocks[-1], column], ruled)
        if blocks[-1][1:] and Console(width=10_000).measure(wider).maximum > width:
            blocks.append([0])
        blocks[-1].append(column)
    tables = [_block(table, block, ruled) for block in blocks]
    tables[0].title = Text(table.title) if table.title else None
    tables[-1].caption = Text("\n".join(table.notes)) if table.notes else None
    return tables


def _block(table: Table, columns: Sequence[int], ruled: bool) -> rich_table.Table:
    out = rich_table.Table(pad_edge=ruled, title_justify="left", caption_justify="left")
    out.box = box.SIMPLE_HEAD if ruled else None
    out.header_style = "table.header" if ruled else "bold"
    for i in columns:
        out.add_column(
            Text(table.header[i]),
            justify="right" if table.right(i) else "left",
            overflow="ellipsis" if ruled else "fold",
            no_wrap=not ruled and i == 0,
        )
    for row in table.cells():
        texts = [Text(row[i].text, "bold" if row[i].best else "") for i in columns]
        for text, i in zip(texts, columns, strict=True):
            text.append(f" {row[i].aside}" if row[i].aside else "", "not bold dim")
        out.add_row(*texts)
    return out


def markdown(table: Table) -> str:
    """Return a table in GitHub-flavoured Markdown, its title above and its notes below."""

    def plain(text: str) -> str:
        return _MARKDOWN.sub(r"\\\1", text)

    def line(cells: Iterable[Cell]) -> str:
        bold = ((c, f"**{plain(c.text)}**" if c.best else plain(c.text)) for c in cells)
        return f"| {' | '.join(f'{text} {plain(c.aside)}'.strip() for c, text in bold)} |"

    marks = "|".join("--:" if table.right(i) else ":--" for i in range(len(table.header)))
    lines = [f"**{plain(table.title)}**", ""] if table.title else []
    lines += [line(map(Cell, table.header)), f"|{marks}|", *map(line, table.cells())]
    lines += ["", "  \n".join(map(plain, table.notes))] if table.notes else []
    return "\n".join(lines) + "\n"


def html(table: Table) -> Markup:
    """Return a ``<table>`` element with classes for the page's CSS."""
    return Markup(TEMPLATES.get_template("table.html.jinja").render(table=table))


def latex(table: Table) -> str:
    r"""Return a LaTeX ``table`` with booktabs' rules; needs ``\usepackage{booktabs}``."""

    def line(cells: Iterable[Cell]) -> str:
        plain = ((c, c.text.translate(_LATEX), c.aside.translate(_LATEX)) for c in cells)
        texts = (rf"\textbf{{{t}}} {a}" if c.best else f"{t} {a}" for c, t, a in plain)
        return " & ".join(text.strip() for text in texts) + r" \\"

    columns = "".join("r" if table.right(i) else "l" for i in range(len(table.header)))
    lines = [r"\begin{table}", r"\centering"]
    lines += [rf"\caption{{{table.title.translate(_LATEX)}}}"] if table.title else []
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line(map(Cell, table.header))]
    lines += [r"\midrule", *map(line, table.cells()), r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {note.translate(_LATEX)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def csv(table: Table) -> str:
    """Return header and rows as CSV, without title and notes."""
    out = io.StringIO()
    separated.writer(out, lineterminator="\n").writerows([table.header, *table.rows])
    return out.getvalue()


def clean(text: object, limit: int = 200) -> str:
    """Return one line of at most ``limit`` characters.

    White space becomes one blank, and an unprintable character becomes �.

    >>> clean("ok\\x1b[2J\\n  done")
    'ok�[2J done'
    """
    shown = "".join(
        " " if c.isspace() else "�" if unicodedata.category(c)[0] == "C" else c
        for c in str(text)[: 8 * limit]
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Format a fraction as a percentage: ``0.931`` -> ``93.1 %``."""
    if fraction is None or not math.isfinite(fraction):
        return NONE
    return f"{100 * fraction:.{digits}f} %"


def size(n_bytes: float | None) -> str:
    """Format bytes in decimal units (1 kB = 1,000 B), as in the papers."""
    return _in_units(n_bytes, "B", "kB", "MB", "GB", "TB")


def operations(n: int) -> str:
    """Format a number of floating-point operations: ``1234567`` -> ``1.23 MFLOP``."""
    return _in_units(n, "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def joules(energy: float | None) -> str:
    """Format an energy: ``1234.5`` -> ``1.23 kJ``."""
    return _in_units(energy, "J", "kJ", "MJ", "GJ")


def _in_units(value: float | None, *units: str) -> str:
    """Format a value with three digits; each unit is a thousand times the previous one."""
    if value is None or not math.isfinite(value):
        return NONE
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {units[power]}"


def duration(seconds: float | None) -> str:
    """Format seconds: 0.42 -> ``0.42 s``, 200 -> ``3 min 20 s``, 7260 -> ``2 h 01 min``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def staleness(buffer: Mapping[str, float]) -> str:
    """Format the staleness in an ``Arrivals.as_dict``: ``1.4 (at most 5)``."""
    return f"{buffer['staleness']:.1f} (at most {number(buffer['oldest'])})"


def in_flight(buffer: Mapping[str, float]) -> str:
    """Format an ``Arrivals.as_dict`` as ``staleness 1.4 (at most 5), 8 in flight``."""
    return f"staleness {staleness(buffer)}, {number(buffer['in_flight'])} in flight"


def number(value: object) -> str:
    """Format an integer with thousands separators, a float with four significant digits."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if math.isfinite(value) else "not finite"
