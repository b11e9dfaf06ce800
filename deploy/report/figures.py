"""The report's figures, one function each, on matplotlib's objects alone (no pyplot, no state).

A function takes runs as ``(label, run)`` pairs, or one run, and returns a Figure. Every text is
drawn as it stands: model and metric names come from clients, and ``$`` in them is no formula.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from common.data.picture import bubbles
from deploy.report import amounts
from deploy.report.palette import GRID, INK, MUTED, PAPER, series
from deploy.report.read import Entry, Run, total

Named = Sequence[tuple[str, Run]]

# Inches, so that type is of one size on the page: half of its width, all of it, a third.
HALF, WIDE, THIRD = (6.2, 3.1), (13.0, 3.4), (3.95, 2.1)
PHASES = ("select", "clients", "step", "score", "checkpoint")  # in a round's order
BARS = 80  # rounds; more of them are drawn as steps and areas
LABELLED = 60  # clients that can all be named under their bars


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw inside: our type and lines, literal text, no warning for a glyph the font lacks."""
    settings: Any = {
        "font.size": 9.5,
        "text.parse_math": False,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": GRID,
        "axes.facecolor": PAPER,
        "figure.facecolor": PAPER,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": GRID,
        "ytick.color": GRID,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": MUTED,
        "ytick.major.size": 0.0,
        "xtick.major.size": 3.0,
        "lines.linewidth": 2.0,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.handlelength": 1.2,
        "legend.fontsize": 9.0,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "fedmosaic",
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def accuracy(runs: Named) -> Figure:
    """The server's test accuracy by round; for one run also the method's further accuracies."""
    with style():
        figure, axes = _axes()
        for i, (label, run) in enumerate(runs):
            points = run.accuracies()
            _line(axes, points, label, i)
            if len(runs) == 1 and points:
                t, best = max(points, key=lambda point: point[1])
                axes.plot([t], [best], "o", color=series(0), markersize=6)
                _note(axes, f"best {amounts.percent(best)}", (t, best))
        if len(runs) == 1:
            run = runs[0][1]
            names = dict.fromkeys(n for e in run.entries for n in e.named_accuracies())
            for i, name in enumerate(names, start=1):
                further = [
                    (e.round, e.named_accuracies()[name])
                    for e in run.entries
                    if name in e.named_accuracies()
                ]
                _line(axes, further, name, i, linestyle=(0, (4, 2)), linewidth=1.5)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        _over_rounds(axes)
        _legend(axes, loc="lower right")
        return figure


def loss(runs: Named) -> Figure:
    """The server's test loss by round."""
    return _curves(runs, lambda e: e.loss, HALF)


def metric(runs: Named, name: str) -> Figure:
    """One of the method's own scalars by round, as a small multiple."""
    return _curves(runs, lambda e: e.scalars().get(name), THIRD, legend=False)


def clients(run: Run) -> Figure:
    """Each client's own model and the global model on its own test share, by architecture."""
    with style():
        scores = run.scores()
        figure, axes = _axes(WIDE)
        models = run.models()
        models += [m for m in dict.fromkeys(s.model for s in scores) if m not in models]
        both = any(s.accuracy_global is not None for s in scores)
        width = 0.38 if both else 0.7
        x = np.arange(len(scores), dtype=float)
        for i, model in enumerate(models):
            at = np.array([j for j, s in enumerate(scores) if s.model == model], dtype=int)
            own = np.array([_value(scores[j].accuracy) for j in at])
            theirs = np.array([_value(scores[j].accuracy_global) for j in at])
            hatch = "" if i < 8 else "////" if i < 16 else "...."
            shape: dict[str, Any] = {
                "color": series(i),
                "edgecolor": PAPER,
                "linewidth": 0.6,
                "hatch": hatch,
            }
            axes.bar(x[at] - (width / 2 if both else 0), own, width, **shape)
            if both:  # on a ground of paper, else the grid would shine through
                axes.bar(x[at] + width / 2, theirs, width, color=PAPER)
                axes.bar(x[at] + width / 2, theirs, width, alpha=0.38, **shape)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlim(-0.7, max(len(scores), 8) - 0.3)
        step = max(1, math.ceil(len(scores) / LABELLED))
        axes.set_xticks(x[::step], [str(s.k) for s in scores[::step]])
        axes.set_xlabel("client")
        handles = [Patch(color=series(i)) for i in range(len(models))]
        names = list(models)
        if both:
            handles += [Patch(color=MUTED), Patch(color=MUTED, alpha=0.38)]
            names += ["own model", "global model"]
        _legend_above(figure, handles, names)
        return figure


def spread(runs: Named) -> Figure:
    """Every client's own accuracy as a dot, the mean as a stroke, one row per run."""
    with style():
        figure, axes = _axes((WIDE[0], 0.9 + 0.42 * len(runs)))
        for i, (_, run) in enumerate(runs):
            found = np.array([_value(s.accuracy) for s in run.scores()])
            found = found[np.isfinite(found)]
            lift = 0.13 * np.sin(2.4 * np.arange(len(found)))  # so that equal dots stay visible
            dots: Any = {"color": series(i), "alpha": 0.55, "markersize": 6, "markeredgewidth": 0}
            axes.plot(found, i + lift, "o", **dots)
            if len(found):
                axes.plot([found.mean()] * 2, [i - 0.32, i + 0.32], color=series(i), linewidth=2.6)
        axes.set_yticks(range(len(runs)), [_short(label, 36) for label, _ in runs])
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.set_xlim(right=1.0)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("accuracy of each client's own model on its own test share")
        return figure


def traffic(run: Run) -> Figure:
    """Bytes per round: down to the clients and up from them; round 0 is the census."""
    with style():
        figure, axes = _axes()
        t = np.array([e.round for e in run.entries], dtype=float)
        up = np.array([_value(e.bytes.get("up", 0.0)) for e in run.entries])
        down = np.array([_value(e.bytes.get("down", 0.0)) for e in run.entries])
        if len(t) > BARS:
            axes.plot(t, down, color=series(0), drawstyle="steps-mid", linewidth=1.5)
            axes.plot(t, up, color=series(4), drawstyle="steps-mid", linewidth=1.5)
            axes.set_ylim(bottom=0)
        else:
            axes.bar(t - 0.2, down, 0.4, color=series(0))
            axes.bar(t + 0.2, up, 0.4, color=series(4))
        _sizes(axes.yaxis)
        _over_rounds(axes, band=True)
        _legend_above(figure, [Patch(color=series(0)), Patch(color=series(4))], ["down", "up"])
        return figure


def phases(run: Run) -> Figure:
    """Where a round's time goes, stacked; what no phase accounts for is ``other``."""
    with style():
        figure, axes = _axes()
        found = dict.fromkeys(n for e in run.entries for n in e.seconds if n != "total")
        names = sorted(found, key=lambda n: PHASES.index(n) if n in PHASES else len(PHASES))
        t = np.array([e.round for e in run.entries], dtype=float)
        base = np.zeros(len(t))
        stacks = {n: np.array([_value(e.seconds.get(n, 0.0)) for e in run.entries]) for n in names}
        stacks = {n: np.nan_to_num(s, nan=0.0) for n, s in stacks.items()}
        whole = np.nan_to_num(np.array([_value(total(e)) for e in run.entries]), nan=0.0)
        other = np.maximum(whole - sum(stacks.values(), start=np.zeros(len(t))), 0.0)
        if other.sum() > 0.01 * whole.sum():
            stacks["other"] = other
        for i, height in enumerate(stacks.values()):
            colour = series(i)
            if len(t) > BARS:
                axes.fill_between(t, base, base + height, step="mid", color=colour, linewidth=0)
            else:
                bars: dict[str, Any] = {"color": colour, "edgecolor": PAPER, "linewidth": 0.5}
                axes.bar(t, height, 0.72, bottom=base, **bars)
            base = base + height
        axes.set_ylabel("seconds")
        _over_rounds(axes, band=True)
        _legend_above(figure, [Patch(color=series(i)) for i in range(len(stacks))], list(stacks))
        return figure


def by_traffic(runs: Named) -> Figure:
    """Accuracy against the bytes sent so far, both ways: what an accuracy costs on the wire."""
    figure = _against(runs, lambda e: e.bytes.get("up", 0.0) + e.bytes.get("down", 0.0))
    with style():
        _sizes(figure.axes[0].xaxis)
        figure.axes[0].set_xlabel("bytes sent, up and down")
    return figure


def by_time(runs: Named) -> Figure:
    """Accuracy against the seconds spent so far."""
    figure = _against(runs, total)
    with style():
        figure.axes[0].xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g}"))
        figure.axes[0].set_xlabel("seconds")
    return figure


def partition(run: Run) -> Figure | None:
    """How the classes are spread over the clients, as bubbles; None if the census does not say."""
    widths = {len(p.counts) for p in run.peers}
    if len(widths) != 1 or widths == {0}:
        return None
    counts = np.array([p.counts for p in run.peers])
    if counts.min() < 0:
        return None
    names = run.classes if len(run.classes) == counts.shape[1] else []
    with style():
        return bubbles(counts, classes=[_short(name, 16) for name in names], color=series(0))


def _axes(figsize: tuple[float, float] = HALF) -> tuple[Figure, Axes]:
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.add_subplot()


def _value(x: float | None) -> float:
    return x if x is not None and math.isfinite(x) else math.nan


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _line(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    label: str,
    i: int,
    linestyle: Any = "-",
    linewidth: float = 2.0,
) -> None:
    """Series i; a lone point gets a mark, since a line of one point shows nothing."""
    x, y = zip(*points, strict=True) if points else ((), ())
    axes.plot(
        x,
        y,
        color=series(i),
        linestyle=linestyle if i < 8 else (0, (1, 1.5)),
        linewidth=linewidth,
        marker="o" if len(points) == 1 else None,
        markersize=4,
        label=_visible(label),
    )


def _curves(
    runs: Named,
    pick: Callable[[Entry], float | None],
    figsize: tuple[float, float],
    legend: bool = True,
) -> Figure:
    with style():
        figure, axes = _axes(figsize)
        for i, (label, run) in enumerate(runs):
            chosen = ((e.round, _value(pick(e))) for e in run.entries)
            _line(axes, [point for point in chosen if math.isfinite(point[1])], label, i)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _over_rounds(axes)
        if legend:
            _legend(axes, loc="upper right")
        return figure


def _against(runs: Named, cost: Callable[[Entry], float]) -> Figure:
    with style():
        figure, axes = _axes()
        for i, (label, run) in enumerate(runs):
            spent, points = 0.0, []
            for e in run.entries:
                spent += np.nan_to_num(_value(cost(e)))
                if e.accuracy is not None and math.isfinite(e.accuracy):
                    points.append((spent, e.accuracy))
            _line(axes, points, label, i)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        _legend(axes, loc="lower right")
        return figure


def _over_rounds(axes: Axes, band: bool = False) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("round")
    if not band:
        axes.margins(x=0.02)


def _sizes(axis: mpl.axis.Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda n, _: amounts.size(n)))


def _note(axes: Axes, text: str, at: tuple[float, float]) -> None:
    low, high = axes.get_xlim()
    side = "right" if at[0] > (low + high) / 2 else "left"
    axes.annotate(text, at, (0, 8), textcoords="offset points", ha=side, color=MUTED, fontsize=9.0)


def _legend(axes: Axes, loc: Any) -> None:
    """Names the lines inside the axes, where there is more than one and not too many."""
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    if 1 < len(lines) <= 10:
        axes.legend(lines, [str(line.get_label()) for line in lines], loc=loc)


def _legend_above(figure: Figure, handles: list[Patch], names: list[str]) -> None:
    if names:
        shown = [_visible(name) for name in names]
        figure.legend(
            handles,
            shown,
            loc="outside upper left",
            ncols=max(1, min(len(names), int(figure.get_figwidth() * 1.05))),
            columnspacing=1.4,
            handleheight=0.8,
            borderaxespad=0.0,
        )


def _visible(name: str) -> str:
    """Matplotlib hides a legend's entry whose name starts with an underscore."""
    return _short("\u200b" + name if name.startswith("_") else name, 36)
