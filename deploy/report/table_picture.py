"""A table as a picture."""

import textwrap
from pathlib import Path

from matplotlib.figure import Figure

from deploy.report.style import INK, MUTED, PAPER, style
from deploy.report.table import Table

LINE = 90  #: characters of a note's line, where title and table are not wider


def png(table: Table, path: Path) -> None:
    """An image as papers set tables: three rules, texts in ink and asides in grey."""
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
