"""A table as data, and its renderings: terminal, Markdown, HTML, LaTeX, CSV and PNG.

The texts of a table are printable (``text.clean``). Each rendering prints them as they stand,
whatever they mean in that language.
"""

import csv as separated
import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
LINE = 90  #: characters of a line of a note in a picture, if title and table are not wider
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

    def right(self, column: int) -> bool:
        """Whether a column is flush right."""
        return self.align[min(column, len(self.align) - 1)] == "r"

    def cells(self) -> list[list[Cell]]:
        """The rows with every text as a cell."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]

    def records(self) -> list[dict[str, str]]:
        """A dictionary for each row, the header's texts its keys."""
        return [dict(zip(self.header, map(str, row), strict=True)) for row in self.rows]


def terminal(table: Table, width: int = 10_000, *, ruled: bool = True) -> list[rich_table.Table]:
    """As many tables below each other as ``width`` characters demand, each with the first column.

    Title above the first, notes below the last; ``ruled`` with a line below the header.
    """
    blocks: list[list[int]] = [[0]]
    for column in range(1, len(table.header)):
        wider = _block(table, [*blocks[-1], column], ruled)
        if blocks[-1][1:] and Console(width=10_000).measure(wider).maximum > width:
            blocks.append([0])
        blocks[-1].append(column)
    drawn = [_block(table, block, ruled) for block in blocks]
    drawn[0].title = Text(table.title) if table.title else None
    drawn[-1].caption = Text("\n".join(table.notes)) if table.notes else None
    return drawn


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
    """A GitHub-flavoured table under its title, notes below."""

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
    """A ``<table>`` alone, with classes for the page's CSS."""
    return Markup(TEMPLATES.get_template("table.html.jinja").render(table=table))


def latex(table: Table) -> str:
    r"""A ``table`` with booktabs' rules: ``\usepackage{booktabs}``."""

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
    """Header and rows, without title and notes."""
    out = io.StringIO()
    separated.writer(out, lineterminator="\n").writerows([table.header, *table.rows])
    return out.getvalue()


def png(table: Table, path: Path) -> None:
    """An image as papers set tables: three rules, texts in ink and asides in grey."""
    from matplotlib.figure import Figure  # what prints tables alone does without

    from deploy.report.style import INK, MUTED, PAPER, style

    rows, heads = table.cells(), table.header[1:]
    em, line, pad = 0.083, 0.3, 0.2  # inches: a character, a row, the margin
    first = em * max(len(row[0].text) for row in rows) + 0.2
    columns = list(zip(*rows, strict=True))[1:]
    aside = [em * max(len(cell.aside) for cell in column) for column in columns]
    texts = [em * max(len(cell.text) for cell in column) for column in columns]
    widths = [
        max(text + grey, em * len(head)) + 0.25
        for text, grey, head in zip(texts, aside, heads, strict=True)
    ]
    letter = em * 0.95
    least = max(first + sum(widths), letter * max(len(table.title), LINE))
    lines = (textwrap.wrap(note, int(least / letter)) for note in table.notes)
    notes = [line for note in lines for line in note]
    width = (least if notes else max(first + sum(widths), letter * len(table.title))) + 2 * pad
    top, bottom = pad + line, pad + line * (len(rows) + 2)
    height = line * (len(rows) + 2) + 0.22 * len(notes) + 3 * pad
    with style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, width), ylim=(height, 0))

        def write(x: float, y: float, text: str, ha: str, colour: str, bold: bool = False) -> None:
            weight = "bold" if bold else "normal"
            axes.text(x, y, text, ha=ha, va="center", color=colour, weight=weight)

        write(pad, pad + 0.1, table.title, "left", INK, bold=True)
        for y, thick in ((top, 1.2), (top + line, 0.6), (bottom, 1.2)):
            axes.plot([pad, width - pad], [y, y], color=INK, linewidth=thick)
        extra = (width - 2 * pad - first - sum(widths)) / len(widths) if widths else 0.0
        right = pad + first
        for head, column, room, grey in zip(heads, columns, widths, aside, strict=True):
            right += room + extra
            write(right, top + line / 2, head, "right", MUTED)
            for j, cell in enumerate(column):
                y = top + line * (j + 1.5)
                write(right, y, cell.aside, "right", MUTED)
                write(right - grey, y, cell.text, "right", INK, bold=cell.best)
        for j, row in enumerate(rows):
            write(pad, top + line * (j + 1.5), row[0].text, "left", INK)
        for i, note in enumerate(notes):
            write(pad, bottom + 0.2 + 0.22 * i, note, "left", MUTED)
        figure.savefig(path, format="png", dpi=200, facecolor=PAPER)
