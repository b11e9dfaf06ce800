"""The colours of every figure and page, for light and dark paper.

The series are Okabe and Ito's colour-blind-safe set (Color Universal Design, 2008) without its
yellow, which vanishes on white; indigo and grey take its place. A figure is drawn in the light
colours; on a page each is replaced by the CSS variable of its name, so it follows the reader's
scheme.
"""

from __future__ import annotations

LIGHT = {
    "ink": "#1f2430",
    "muted": "#667085",
    "grid": "#e3e6eb",
    "paper": "#fefefe",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#cc79a7",
    "c4": "#e69f00",
    "c5": "#56b4e9",
    "c6": "#332288",
    "c7": "#7f8794",
}
DARK = {
    "ink": "#e7e9ee",
    "muted": "#9aa4b5",
    "grid": "#2b323e",
    "paper": "#171b22",
    "c0": "#4ba3e3",
    "c1": "#f0803c",
    "c2": "#2fbf97",
    "c3": "#e39cc4",
    "c4": "#f0b64a",
    "c5": "#a4dbfb",
    "c6": "#9c90f2",
    "c7": "#939cab",
}
INK, MUTED, GRID, PAPER = (LIGHT[name] for name in ("ink", "muted", "grid", "paper"))
SERIES = tuple(LIGHT[f"c{i}"] for i in range(8))


def series(i: int) -> str:
    """The colour of series i; they repeat after eight."""
    return SERIES[i % len(SERIES)]


def css() -> str:
    """The custom properties for both schemes."""

    def properties(colours: dict[str, str]) -> str:
        return " ".join(f"--{name}: {value};" for name, value in colours.items())

    return (
        f":root {{ {properties(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {properties(DARK)} }} }}"
    )
