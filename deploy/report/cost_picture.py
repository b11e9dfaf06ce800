"""Accuracy against what it costs: bytes that clients send, or operations of training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from deploy.report.style import PAPER, frames, series, style
from deploy.report.text import clean

MARKERS = "osD^vP*Xh"  # one more than there are colours, so that no pair soon comes again
ACROSS = 3  # panels beside each other


@final
@dataclass(frozen=True)
class Spot:
    """A cell of a table: what a run cost, above 0, the mean over seeds, and the table's number with
    half of its interval."""

    cost: float
    value: float
    interval: float | None


Panels = Mapping[str, Mapping[str, Spot]]
"""Column to row to what is drawn there."""


def png(title: str, unit: str, rows: Sequence[str], panels: Panels, cost: str, path: Path) -> None:
    """A panel for each column with its rows as points: the cost, logarithmic, against the number.

    A row has the same colour and marker in every panel. ``cost`` says what the axis is, and its
    unit.
    """
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    with style():
        figure, axes = frames((3.9 * across + 2.8, 3.2 * down + 0.4), down, across)
        drawn = {}
        for place, (name, spots) in zip(axes.flat, panels.items(), strict=False):
            for i, row in enumerate(rows):
                if (spot := spots.get(row)) is not None:
                    drawn[row] = place.errorbar(
                        spot.cost, spot.value, yerr=spot.interval, fmt=MARKERS[i % len(MARKERS)],
                        color=series(i), markersize=7, markerfacecolor="none",
                        markeredgewidth=1.6, capsize=3, elinewidth=1.0,
                    )  # fmt: skip
            place.set_xscale("log")
            low, high = place.get_xlim()
            place.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
            place.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            place.xaxis.set_minor_formatter(NullFormatter())
            place.set_title(clean(name), fontsize=10.0, loc="left")
            place.set(xlabel=cost, ylabel=unit)
        for place in list(axes.flat)[len(panels) :]:
            place.set_axis_off()
        shown = {clean(row): drawn[row] for row in rows if row in drawn}
        figure.legend(shown.values(), shown.keys(), loc="outside right upper")
        heading = textwrap.fill(clean(title), 40 * across)
        figure.suptitle(heading, fontsize=11.0, x=0.01, ha="left", fontweight="bold")
        figure.savefig(path, format="png", dpi=160, facecolor=PAPER)
