"""A figure as SVG inside a page: no outer resource, ids of its own, colours of the page.

The page's CSS decides colour and typeface, so one drawing serves light and dark. Names in the
figure come from clients; matplotlib's writer escapes them, and nothing here unescapes.
"""

from __future__ import annotations

import io
import re

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from deploy.report.figures import style
from deploy.report.palette import LIGHT

_COLOURS = {hex_: name for name, hex_ in LIGHT.items()} | {
    "#ffffff": "paper",
    "#000000": "ink",
}


def inline(figure: Figure, name: str, alt: str) -> Markup:
    """``<svg role="img" aria-label=alt>``; ``name`` (letters, digits, -) goes before every id."""
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name), name
    raw = io.StringIO()
    with style():
        figure.savefig(raw, format="svg", transparent=True, metadata={"Date": None})
    text = raw.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)  # the page has its own
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0]
    opening = (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {width} {height}" '
        f'style="max-width:{float(width) * 1.25:.0f}px">'
    )
    body = text[text.index(">") + 1 :]
    body = _in_tags(body, name)
    body = re.sub(r"\n\s*\n+", "\n", body)
    return Markup(opening + body)  # matplotlib escaped the text, we the alt text


def _in_tags(body: str, name: str) -> str:
    """Rewrite ids, references, colours and fonts in the tags; what stands between them stays."""

    def rewrite(tag: re.Match[str]) -> str:
        text = tag.group(0).replace("xlink:href=", "href=")
        text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
        text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
        text = re.sub(r"font-family: [^;\"]*;? ?", "", text)  # the page's type is inherited
        text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a point is enough
        return re.sub(r"#[0-9a-f]{6}\b", _variable, text)

    return re.sub(r"<[a-zA-Z][^>]*>", rewrite, body)


def _variable(colour: re.Match[str]) -> str:
    name = _COLOURS.get(colour.group(0))
    return colour.group(0) if name is None else f"var(--{name})"
