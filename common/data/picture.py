"""Bubble chart of a partition: one bubble per client and class, with area by sample count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = 0.27  #: distance of two bubbles in inches
FILL = 0.94  #: diameter of the largest bubble, in cells
LEAST = 11.0  #: smallest such diameter in points; bubbles of many clients may overlap


def bubbles(
    counts: np.ndarray,
    *,
    classes: Sequence[str] = (),
    color: str = "C0",
) -> Figure:
    """Return a figure of ``counts`` (clients, classes), with clients on x and classes on y.

    The area of a bubble is proportional to its count. The largest one nearly fills its cell, and a
    legend gives the scale. ``classes`` names the rows if there are at most 30. pyplot's global
    state does not change.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if counts.ndim != 2 or not counts.size or not np.isfinite(counts).all() or counts.min() < 0:
        raise ValueError(f"counts {counts.shape} must be (clients, classes) numbers from 0 on")
    clients, num_classes = counts.shape
    cell = CELL * min(1.0, 36 / max(clients, 1.5 * num_classes))
    width = max(clients * cell, 2.4)
    height = max(num_classes * max(cell, 0.19), 1.2)
    figure = Figure(figsize=(width + 1.9, height + 0.9), layout="constrained")
    axes = figure.add_subplot()
    top = float(max(counts.max(), 1))
    diameter = max(FILL * 72 * min(width / clients, height / num_classes, 0.4), LEAST)
    k, c = np.nonzero(counts)
    areas = counts[k, c] / top * diameter**2
    axes.scatter(k, c, s=areas, color=color, alpha=0.8, linewidths=0)
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(-0.6, num_classes - 0.4), axisbelow=True)
    axes.set(xlabel="client", ylabel="class")
    axes.grid(True, alpha=0.25, linewidth=0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    few = partial(MaxNLocator, 20, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    axes.xaxis.set_major_locator(few())
    if classes and num_classes <= 30:
        axes.set_yticks(range(num_classes), list(classes))
    else:
        axes.yaxis.set_major_locator(few())
    steps = _key(top)
    handles = [
        axes.scatter([], [], s=n / top * diameter**2, color=color, alpha=0.8, linewidths=0)
        for n in steps
    ]
    figure.legend(
        handles,
        [f"{n:,}" for n in steps],
        title="samples",
        loc="outside right upper",
        frameon=False,
        labelspacing=0.9,
        scatteryoffsets=[0.5],
    )
    return figure


def _key(top: float) -> list[int]:
    """Return up to three round counts that are at most ``top``, largest first."""
    power = 10 ** int(np.floor(np.log10(top)))
    largest = max(s for s in (1, 2, 5) if s * power <= top) * power
    return sorted({largest, max(largest // 4, 1), max(largest // 20, 1)}, reverse=True)
