"""A report's page as data, and its one template.

``page.html.jinja`` and ``page.css`` hold all markup; Jinja escapes every value that is not an SVG
of ours. The page forbids itself, by its Content-Security-Policy, to load or run anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from markupsafe import Markup
from matplotlib.figure import Figure

from deploy.report.style import css, inline
from deploy.report.table import HERE, TEMPLATES, Table, html


@final
@dataclass(frozen=True)
class Card:
    """A plot or a table with its title; ``alt`` says the plot in words, ``behind`` is its data,
    folded away.

    ``span`` is in twelfths of the page's width.
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
    """Return a section with one card as wide as the page, which has no title of its own."""
    return Section(title, [Card("", span=12, **card)], lead)


@final
@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    state: str  # one of "done", "open", "failed": the colour of the pill beside the title
    pill: str
    tiles: Sequence[tuple[str, str, str]]  # headline numbers: what it is, the number, a word on it
    notes: Sequence[str]
    sections: Sequence[Section | None] = ()  # what has nothing to show is None


def render(page: Page) -> str:
    """The page as one HTML document that needs nothing else."""
    sheet = css() + "\n" + (HERE / "page.css").read_text(encoding="utf-8")
    template = TEMPLATES.get_template("page.html.jinja")
    return template.render(page=page, css=Markup(sheet), html=html, inline=inline)  # our own file
