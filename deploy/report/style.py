"""Appearance of plots and pages: colours, fonts, plots as SVG, tables as pictures, whole pages.

The series use Okabe and Ito's colour-blind-safe palette (Color Universal Design, 2008). Indigo and
grey replace its yellow, which is hard to see on white. Plots are drawn in the light colours; on a
page CSS variables replace them, so that a plot follows the reader's colour scheme. The page's CSS
also sets the typeface.

Names in a plot come from clients; they stay text nodes of the XML tree. Matplotlib carries the
hover texts of an artist's marks in its ``gid``, as a JSON list.

``page.html.jinja`` and ``page.css`` contain all markup of a page. Jinja escapes every value except
our own SVGs. The page's Content-Security-Policy forbids loading and running anything but the script
of a live page.
"""

import base64
import contextlib
import hashlib
import io
import json
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from deploy.report.serve import LOCKED
from deploy.report.table import HERE, TEMPLATES, Cell, Table, html

LINE = 90  #: most characters of a line of a note in a picture

PALETTE = {  # on light paper, on dark paper
    "ink": ("#1f2430", "#e7e9ee"),
    "muted": ("#667085", "#9aa4b5"),
    "grid": ("#e3e6eb", "#2b323e"),
    "paper": ("#fefefe", "#171b22"),
    "c0": ("#0072b2", "#4ba3e3"),
    "c1": ("#d55e00", "#f0803c"),
    "c2": ("#009e73", "#2fbf97"),
    "c3": ("#cc79a7", "#e39cc4"),
    "c4": ("#e69f00", "#f0b64a"),
    "c5": ("#56b4e9", "#a4dbfb"),
    "c6": ("#332288", "#9c90f2"),
    "c7": ("#7f8794", "#939cab"),
}
INK, MUTED, GRID, PAPER = (PALETTE[name][0] for name in ("ink", "muted", "grid", "paper"))

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_COLOURS = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_COLOURS |= {"#ffffff": "var(--paper)", "#000000": "var(--ink)"}


SORTABLE = """\
// The tables of results; those behind plots stay in the order of the plot.
for (const table of document.querySelectorAll(".card > .scroll > table")) {
  if (table.tBodies[0].rows.length > 1) sortable(table, cellValue);
}
"""


def series(i: int) -> str:
    """Return the colour of series i; colours repeat after eight."""
    return PALETTE[f"c{i % 8}"][0]


def css() -> str:
    """Return the CSS custom properties of both colour schemes."""
    light, dark = (
        " ".join(f"--{name}: {pair[i]};" for name, pair in PALETTE.items()) for i in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


@contextlib.contextmanager
def style(*, ticks: bool = True) -> Iterator[None]:
    """Apply our fonts and lines, literal text, and no warnings for missing glyphs while drawing.

    Without ``ticks`` axes only frame pictures: no grid, no numbers.
    """
    with mpl.rc_context(fname=HERE / "plots.mplstyle"), warnings.catch_warnings():
        if not ticks:
            mpl.rc_file(HERE / "pictures.mplstyle", use_default_template=False)
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def frames(size: tuple[float, float], rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """Return a figure of ``size`` inches and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def frame(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """Return a figure of ``size`` inches and its single pair of axes."""
    figure, axes = frames(size, 1, 1)
    return figure, axes[0, 0]


def panels(
    n: int, title: str, panel: tuple[float, float], margin: tuple[float, float], width: int
) -> tuple[Figure, np.ndarray]:
    """Return a figure with the axes of ``n`` panels, at most three in a row, below its title.

    ``panel`` and ``margin``: inches of a panel, and of what is beside all of them; ``width``:
    characters of the title above a panel.
    """
    across = min(n, 3)
    down = -(-n // across)
    size = panel[0] * across + margin[0], panel[1] * down + margin[1]
    figure, grid = frames(size, down, across)
    for axes in grid.flat[n:]:
        axes.set_axis_off()
    heading = textwrap.fill(title, width * across)
    figure.suptitle(heading, fontsize=11.0, x=0.01, ha="left", fontweight="bold")
    return figure, grid.flat[:n]


def set_log(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at its ticks."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the suffix, with its folder; return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def set_hover_texts(artist: Artist, texts: Sequence[str]) -> None:
    """Set the texts that the marks of ``artist`` show on hover, in drawing order."""
    artist.set_gid(json.dumps(list(texts)))


def inline(figure: Figure, name: str, alt: str) -> Markup:
    """Return a plot as ``<svg role="img" aria-label=alt>``; every id starts with ``name``.

    ``name``: letters, digits and hyphens.
    """
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name), name
    raw = io.BytesIO()
    with style():
        figure.savefig(raw, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(raw.getvalue())
    values = [value for e in root.iter() for key, value in e.attrib.items() if key != "id"]
    used = dict.fromkeys(re.findall(r"(?:^|url\()#([\w.-]+)", "\n".join(values), re.MULTILINE))
    ids = {old: f"{name}-{i}" for i, old in enumerate(used)}
    hovers = [(e, e.attrib["id"]) for e in root.iter() if e.attrib.get("id", "").startswith("[")]
    for element in root.iter():
        _rewrite(element, ids)
    for group, gid in hovers:
        _entitle(group, json.loads(gid))
    _prune(root)
    box = root.attrib["viewBox"]
    limit = f"max-width:{float(box.split()[2]) * 1.25:.0f}px"
    root.attrib = {"role": "img", "aria-label": alt, "viewBox": box, "style": limit}
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # the writer escaped all text


def _rewrite(element: Element, ids: dict[str, str]) -> None:
    """Adapt one element to the page: its colours, font and ids; no name space, no blank text."""
    element.tag = element.tag.removeprefix(_SVG)
    element.tail = None
    if element.tag != "text":
        element.text = None
    gid = element.attrib.pop("id", "")
    if gid in ids:
        element.attrib["id"] = ids[gid]
    if target := element.attrib.pop(_HREF, ""):
        element.attrib = {"href": f"#{ids[target[1:]]}", **element.attrib}
    for key, value in element.attrib.items():
        element.attrib[key] = re.sub(r"url\(#([^)]+)", lambda m: f"url(#{ids[m[1]]}", value)
    for key in element.attrib.keys() & {"d", "x", "y", "transform", "width", "height"}:
        value = re.sub(r"(\d\.\d\d)\d+", r"\1", element.attrib[key])  # a hundredth of a point
        element.attrib[key] = re.sub(r"\s*([MLCQz])\s*", r"\1", value.strip())
    if element.attrib.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    _declare(element, _declarations(element))


def _prune(parent: Element) -> None:
    """Remove elements that draw nothing; replace groups without attributes by their children."""
    kept: list[Element] = []
    for child in parent:
        _prune(child)
        group = child.tag in ("g", "defs")
        if child.tag in ("metadata", "style") or (group and not len(child)):
            continue  # the page has its own style sheet
        kept += list(child) if child.tag == "g" and not child.attrib else [child]
    parent[:] = kept


def _entitle(group: Element, texts: list[str]) -> None:
    """Give each mark in ``group`` its text as a title; a group of invisible marks gets the page's
    class ``hover``."""
    marks = list(group.iter("use")) or list(group.findall("path"))
    if len(marks) != len(texts):
        return  # matplotlib omits marks beyond the canvas
    for mark, text in zip(marks, texts, strict=True):
        styles = _declarations(mark)
        if styles.get("fill-opacity") == "0":
            group.attrib = {"class": "hover", "style": f"fill:{styles['fill']}"}
            _declare(mark, {})
        ElementTree.SubElement(mark, "title").text = text


def _declarations(element: Element) -> dict[str, str]:
    """Return the style attribute without the typeface, in the page's colours.

    The backgrounds of hatches have their colour in an attribute of their own, which is removed.
    """
    background = element.attrib.pop("fill", "")
    pairs = (rule.partition(":") for rule in element.attrib.get("style", "").split(";"))
    styles = {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
    styles.pop("font-family", None)
    styles |= {"fill": background} if background else {}
    return {key: _COLOURS.get(value, value) for key, value in styles.items()}


def _declare(element: Element, styles: dict[str, str]) -> None:
    element.attrib.pop("style", None)
    if styles:
        element.attrib["style"] = ";".join(f"{key}:{value}" for key, value in styles.items())


def png(table: Table, path: Path) -> None:
    """Write a table as an image with three rules as in papers; the best numbers are bold."""
    rows = table.cells()
    texts = [[str(cell) for cell in row] for row in rows]
    with style():
        figure = Figure((1, 1))  # the image has the size of the table
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        drawn = axes.table(texts, colLabels=[*table.header], edges="open", loc="upper left")
        drawn.auto_set_font_size(False)
        drawn.auto_set_column_width([*range(len(table.header))])
        drawn.scale(1.0, 1.5)
        for (line, column), cell in drawn.get_celld().items():
            best = line > 0 and rows[line - 1][column].best
            cell.set_text_props(color=INK if line else MUTED, weight="bold" if best else "normal")
            cell.set_text_props(ha="right" if table.right(column) else "left")
            cell.visible_edges = "BT" if line == 0 else "B" * (line == len(rows))
            cell.set(edgecolor=INK, linewidth=0.8)
            cell.PAD = 0.1 if column else 0.0
        beside: dict[str, Any] = {"xycoords": drawn, "textcoords": "offset points"}
        axes.annotate(table.title, (0, 1), (0, 8), weight="bold", **beside)
        notes = "\n".join(textwrap.fill(note, LINE) for note in table.notes)
        axes.annotate(notes, (0, 0), (0, -8), va="top", color=MUTED, **beside)
        figure.savefig(path, dpi=200, facecolor=PAPER, bbox_inches="tight", pad_inches=0.2)


@final
@dataclass(frozen=True)
class Card:
    """A plot or a table with its title.

    ``alt`` describes the plot, ``behind`` is a collapsed table of its data, and ``span`` is the
    width in twelfths of the page.
    """

    title: str
    figure: Figure | None = None
    alt: str = ""
    table: Table | None = None
    text: str = ""
    behind: Table | None = None
    span: int = 6


@final
@dataclass(frozen=True)
class Section:
    title: str
    cards: Sequence[Card]
    lead: str = ""


def single(title: str, lead: str = "", **card: Any) -> Section:
    """Return a section with one untitled card as wide as the page."""
    return Section(title, [Card("", span=12, **card)], lead)


def tabular(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    lead: str = "",
    **table: Any,
) -> Section | None:
    """Return a section with one table; None without rows."""
    return single(title, lead, table=Table(header, rows, **table)) if rows else None


@final
@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    state: str  # one of "done", "open", "failed": the colour of the pill beside the title
    pill: str
    tiles: Sequence[tuple[str, str, str]] = ()  # headline numbers: name, number, hint
    notes: Sequence[str] = ()
    sections: Sequence[Section | None] = ()  # None: without content


def render_sortable(page: Page, script: str = "") -> str:
    """Return the page with tables that can be sorted by a click on a heading.

    ``script``: our own JavaScript, which calls ``sortable``; empty: tables are sorted by the
    numbers that their cells show.
    """
    whole = (HERE / "sort.js").read_text(encoding="utf-8") + (script or SORTABLE)
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    return render(page, whole, f"{LOCKED}; script-src 'sha256-{digest}'")


def render(page: Page, script: str = "", policy: str = LOCKED) -> str:
    """Return the page as one self-contained HTML document.

    ``script``: our own JavaScript; ``policy``: Content-Security-Policy that allows it.
    """
    sheet = css() + "\n" + (HERE / "page.css").read_text(encoding="utf-8")
    template = TEMPLATES.get_template("page.html.jinja")
    ours = {"css": Markup(sheet), "script": Markup(script), "policy": Markup(policy)}
    return template.render(page=page, html=html, inline=inline, **ours)
