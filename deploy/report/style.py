"""The colours and the type of every plot and page, for light and dark paper.

The series are Okabe and Ito's colour-blind-safe set (Color Universal Design, 2008) without its
yellow, which vanishes on white; indigo and grey take its place. A plot is drawn in the light
colours; on a page each is replaced by the CSS variable of its name, so it follows the reader's
scheme.
"""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent

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


def series(i: int) -> str:
    """The colour of series i; they repeat after eight."""
    return PALETTE[f"c{i % 8}"][0]


def css() -> str:
    """The custom properties for both schemes."""
    light, dark = (
        " ".join(f"--{name}: {pair[i]};" for name, pair in PALETTE.items()) for i in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


@contextlib.contextmanager
def style(*, ticks: bool = True) -> Iterator[None]:
    """Draw inside: our type and lines, literal text, no warning for a glyph the font lacks.

    Without ``ticks`` axes are frames for pictures: no grid, no numbers.
    """
    with mpl.rc_context(fname=HERE / "plots.mplstyle"), warnings.catch_warnings():
        if not ticks:
            mpl.rc_file(HERE / "pictures.mplstyle", use_default_template=False)
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def frames(size: tuple[float, float], rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """A figure of ``size`` inches and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def frame(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """The same with one pair of axes."""
    figure, axes = frames(size, 1, 1)
    return figure, axes[0, 0]


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG; returns ``path``."""
    figure.savefig(path, format="png", dpi=150)
    return path
