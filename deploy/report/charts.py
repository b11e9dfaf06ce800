"""Kinds of charts: lines over rounds, stacked bars, rows of dots, squares; their axes and legends.

Points of a line, bars, dots and squares show their value on hover (``style.set_hover_texts``).
"""

import math
import operator
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from common.journal import Entry
from common.measures import ACCURACY, Measure
from common.metrics import MANY, thinned
from deploy.report.groups import Groups
from deploy.report.groups import spread as over_seeds
from deploy.report.read import Run
from deploy.report.style import MUTED, PAPER, frame, series, set_hover_texts, style
from deploy.report.table import clean, number, size

# Inches for half, full and a third of the page's width, so that all texts have the same size.
HALF, WIDE, THIRD = (6.2, 3.1), (13.0, 3.4), (3.95, 2.1)
BARS = 80  # most rounds that are drawn as bars; more are drawn as areas
NAME = 160  # most characters of a name in a plot
BESIDE = 26  # characters of a line in a legend beside the plot
LINES = 16  # most lines of a legend beside the plot
MARKS = 60  # most points of a line with a hover text

Point = tuple[float, float, str]
"""x, y and the hover text."""
Line = tuple[Sequence[float], Sequence[float]]
"""x and y of several points."""
Course = dict[int, tuple[float, float]]
"""Round -> (x, y) of its point."""


def squares(
    places: tuple[np.ndarray, np.ndarray],
    alpha: Any,
    n: int,
    width: float,
    texts: Sequence[str],
) -> tuple[Figure, Axes]:
    """Draw squares at the rows and columns ``places`` of an n × n matrix.

    ``alpha``: their opacities in [0, 1]; ``width``: inches of one, at most.
    """
    side = min(max(width * n, 1.6), 5.0)
    figure, axes = frame((side + 0.9, side + 0.7))
    area = (0.92 * 72 * side / n) ** 2
    rows, columns = places
    dots = axes.scatter(
        columns, rows, s=area, marker="s", color=series(0), alpha=alpha, linewidths=0
    )
    set_hover_texts(dots, texts)
    axes.set(xlim=(-0.6, n - 0.4), ylim=(n - 0.4, -0.6))
    axes.grid(False)
    return figure, axes


def bubbles(
    counts: np.ndarray, classes: Sequence[str], texts: Sequence[str], noun: str = "class"
) -> Figure:
    """Draw a bubble for each positive number in ``counts`` (clients, classes), with area by number.

    The largest one nearly fills its cell, and a legend gives the scale. ``classes`` names the rows
    if there are at most 30; empty: numbers.
    """
    clients, num_classes = counts.shape
    cell = 0.27 * min(1.0, 36 / max(clients, 1.5 * num_classes))  # inches
    width, height = max(clients * cell, 2.4), max(num_classes * max(cell, 0.19), 1.2)
    figure, axes = frame((width + 1.9, height + 0.9))
    side = min(width / clients, height / num_classes, 0.4)
    area = max(0.94 * 72 * side, 11.0) ** 2 / max(counts.max(), 1)  # of one sample
    k, c = np.nonzero(counts)
    look: dict[str, Any] = {"color": series(0), "alpha": 0.8, "linewidths": 0}
    set_hover_texts(axes.scatter(k, c, s=area * counts[k, c], **look), texts)
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(-0.6, num_classes - 0.4))
    axes.set(xlabel="client", ylabel=noun)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(20, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if classes and num_classes <= 30:
        axes.set_yticks(range(num_classes), classes)
    axes.grid(visible=True)
    key = {f"{n:,}": axes.scatter([], [], s=area * n, **look) for n in _key(max(counts.max(), 1))}
    beside: dict[str, Any] = {"loc": "outside right upper", "labelspacing": 0.9}
    figure.legend(key.values(), key, title="samples", scatteryoffsets=[0.5], **beside)
    return figure


def _key(top: float) -> list[int]:
    """Return up to three round counts that are at most ``top``, largest first."""
    power = 10 ** int(np.floor(np.log10(top)))
    largest = max(s for s in (1, 2, 5) if s * power <= top) * power
    return sorted({largest, max(largest // 4, 1), max(largest // 20, 1)}, reverse=True)


def or_nan(x: float | None) -> float:
    """Return a number; not a number if it is missing or infinite."""
    return x if x is not None and math.isfinite(x) else math.nan


def finite(values: Iterable[float]) -> np.ndarray:
    """Return the values as an array, with 0 for those that are not finite."""
    return np.array([value if math.isfinite(value) else 0.0 for value in values])


def legend_label(name: str) -> str:
    """Return a legend label; matplotlib hides a label that starts with an underscore."""
    return ("\u200b" if name.startswith("_") else "") + clean(name, NAME)


def hover_bars(bars: BarContainer, texts: Sequence[str]) -> None:
    """Set the hover text of each bar."""
    for bar, text in zip(bars, texts, strict=True):
        set_hover_texts(bar, [text])


def hover_points(axes: Axes, points: Sequence[Point], i: int) -> None:
    """Draw invisible marks with hover texts on a line of series i, at most ``MARKS`` points."""
    chosen = points[:: -max(1, math.ceil(len(points) / MARKS))]
    if chosen:
        x, y, texts = zip(*chosen, strict=True)
        (marks,) = axes.plot(x, y, "o", color=series(i), markersize=7, alpha=0)
        set_hover_texts(marks, texts)


def draw_line(
    axes: Axes, points: Sequence[Point], label: str, i: int, *, dashed: bool = False
) -> None:
    """Draw series i, and give a single point a visible mark."""
    dashes = (1, 1.5) if i >= 8 else (4, 2) if dashed else None
    axes.plot(
        [x for x, _, _ in points], [y for _, y, _ in points], color=series(i),
        linestyle=(0, dashes) if dashes else "-", linewidth=1.5 if dashed else 2.0,
        marker="o" if len(points) == 1 else None, markersize=4, label=legend_label(label),
    )  # fmt: skip
    hover_points(axes, points, i)


def draw_groups(
    axes: Axes,
    groups: Groups,
    course: Callable[[Run], Course],
    write: Callable[[float], str],
    at: Callable[[float], str] | None = None,
) -> None:
    """Draw a line for each group: the mean over the rounds that all its runs have, and its band.

    A hover text has the round and the value, with ``at`` also x, and the group if not the only one.
    """
    for i, group in enumerate(groups):
        prefix = f"{clean(group.label, NAME)}, " if len(groups) > 1 else ""
        courses = [course(run) for run in group.runs]
        points, bands = list[Point](), list[tuple[float, float, float]]()
        for t in sorted(set.intersection(*map(set, courses))):
            x, _ = over_seeds([points_by_round[t][0] for points_by_round in courses])
            mean, deviation = over_seeds([points_by_round[t][1] for points_by_round in courses])
            x_text = f", {at(x)}" if at else ""
            more = f" ± {write(deviation)}" if group.several else ""
            points.append((x, mean, f"{prefix}round {t}{x_text}: {write(mean)}{more}"))
            bands.append((x, mean - deviation, mean + deviation))
        if group.several and bands:
            xs, low, high = zip(*bands, strict=True)
            axes.fill_between(xs, low, high, color=series(i), alpha=0.18, linewidth=0)
        draw_line(axes, points, group.label, i)


@style()
def curves(
    groups: Groups, pick: Callable[[Entry], float | None], figsize: tuple[float, float]
) -> Figure:
    """Plot the values that ``pick`` returns, by round."""

    def course(run: Run) -> Course:
        chosen = ((e.round, or_nan(pick(e))) for e in run.entries)
        return {t: (t, v) for t, v in chosen if math.isfinite(v)}

    figure, axes = frame(figsize)
    draw_groups(axes, groups, course, number)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    round_axis(axes, margin=0.02)
    if figsize != THIRD:  # a small multiple has no room for a legend
        legend(axes)
    return figure


@style()
def lines(
    named: Mapping[str, Line], x: str, y: str, *, dots: bool = False, diagonal: bool = True
) -> Figure:
    """Draw lines, or their points as ``dots``, on the axes ``x`` and ``y``, and often y = x."""
    figure, axes = frame(HALF)
    for i, (name, line) in enumerate(named.items()):
        points = [(a, b, f"{name}: {a:.4g}, {b:.4g}") for a, b in zip(*line, strict=True)]
        if dots:
            axes.plot(*line, "o", color=series(i), alpha=0.45, markersize=4, markeredgewidth=0)
            hover_points(axes, points, i)
        else:
            draw_line(axes, points, name, i)
    if diagonal:
        ends = [end for line in named.values() for of in line for end in (min(of), max(of))]
        both = [min(ends), max(ends)]
        axes.plot(both, both, color=MUTED, linestyle=(0, (4, 2)), linewidth=1.0)
    axes.set(xlabel=x, ylabel=y)
    legend(axes)
    return figure


@style()
def stacked(
    run: Run, stacks: Mapping[str, np.ndarray], write: Callable[[float], str]
) -> tuple[Figure, Axes]:
    """Draw the amounts of each round stacked, as bars, or as areas above ``BARS`` rounds."""
    figure, axes = frame(HALF)
    t, base = np.array([e.round for e in run.entries], dtype=float), np.zeros(len(run.entries))
    rounds, sums = [f"round {x:.0f}" for x in t], sum(stacks.values(), start=base)
    texts = [f"{name}: {write(amount)}" for name, amount in zip(rounds, sums, strict=True)]
    for i, (name, height) in enumerate(stacks.items()):
        labels = [f", {name} {write(amount)}" for amount in height]
        if len(t) > BARS:
            axes.fill_between(t, base, base + height, step="mid", color=series(i), linewidth=0)
            visible = [
                text if amount >= 0.005 else "" for text, amount in zip(labels, height, strict=True)
            ]
            texts = list(map(operator.add, texts, visible))
        else:
            bars = axes.bar(
                t, height, 0.72, bottom=base, color=series(i), edgecolor=PAPER, linewidth=0.5
            )
            hover_bars(bars, list(map(operator.add, rounds, labels)))
        base = base + height
    if len(t) > BARS:
        hover_points(axes, list(zip(t, base, texts, strict=True)), len(stacks) - 1)
    round_axis(axes)
    legend_above(figure, {name: Patch(color=series(i)) for i, name in enumerate(stacks)})
    return figure, axes


@final
@dataclass(frozen=True)
class Cost:
    """A cost since the start of a run, as the horizontal axis of its score.

    ``of``: its value in an entry, None without one; ``by_round``: whether values are of each round
    alone, and are summed. ``label``: of the axis, with the unit; ``write`` formats a value.
    """

    name: str
    label: str
    write: Callable[[float], str]
    of: Callable[[Entry], float | None]
    by_round: bool = True

    def known(self, run: Run) -> bool:
        """Return whether an entry of the run has the cost."""
        return any(self.of(entry) is not None for entry in run.entries)

    def spent(self, entries: Iterable[Entry]) -> list[float]:
        """Return the cost since the start of the run at the end of each entry."""
        values = finite(self.of(entry) or 0.0 for entry in entries)
        spent: list[float] = (np.add if self.by_round else np.maximum).accumulate(values).tolist()
        return spent


@style()
def against(groups: Groups, cost: Cost) -> Figure:
    """Plot the primary score against a cost; runs without it have no line."""

    def course(run: Run) -> Course:
        pairs = zip(run.entries, cost.spent(run.entries), strict=True) if cost.known(run) else ()
        scored = [(e.round, x, a) for e, x in pairs if (a := e.primary_score) is not None]
        return {t: (x, a) for t, x, a in scored if math.isfinite(a)}

    figure, axes = frame(HALF)
    measure = measure_in(groups)
    draw_groups(axes, groups, course, partial(measure.text, digits=2), cost.write)
    score_axis(axes, measure)
    if cost.write is size:
        size_axis(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g}"))
    axes.set_xlabel(cost.label)
    return figure


@style()
def dot_rows(
    figsize: tuple[float, float],
    rows: Sequence[tuple[str, list[tuple[float, str]], float]],
    measure: Measure,
    where: str,
) -> Figure:
    """Draw rows: the name, the dots (value and hover text) and the position of the stroke.

    ``where``: the samples of the score, for the label of the axis.
    """
    figure, axes = frame(figsize)
    for i, (_, dots_of_row, centre) in enumerate(rows):
        shown = thinned(sorted(dots_of_row)) if len(dots_of_row) > MANY else dots_of_row
        values, texts = [value for value, _ in shown], [text for _, text in shown]
        lift = 0.13 * np.sin(2.4 * np.arange(len(values)))  # so that equal dots stay visible
        (dots,) = axes.plot(values, i + lift, "o", color=series(i), alpha=0.55, markeredgewidth=0)
        set_hover_texts(dots, texts)
        axes.plot([centre] * 2, [i - 0.32, i + 0.32], color=series(i), linewidth=2.6)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"{measure.title} {where}")
    score_range(axes, measure, [value for _, dots_of_row, _ in rows for value, _ in dots_of_row])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    return figure


def score_range(axes: Axes, measure: Measure, values: Sequence[float]) -> None:
    """Let the horizontal axis of scores reach beyond their range by 5 %, and at least 0.01."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = max(0.05 * (high - low), 0.01)
    axes.set_xlim(low - margin, high + margin)
    if measure is ACCURACY:
        decimals = 0 if high - low > 0.04 else 1
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))


def score_limits(measure: Measure, values: Iterable[float | None]) -> tuple[float, float]:
    """Return the ends of an axis of scores with 0: the measure's range as far as it is finite."""
    known = [0.0, *(value for value in values if value is not None and math.isfinite(value))]
    low = measure.least if math.isfinite(measure.least) else 1.05 * min(known)
    return low, measure.most if math.isfinite(measure.most) else 1.05 * max(known)


def measure_in(groups: Groups) -> Measure:
    """Return the measure of the groups' runs."""
    measures = (run.measure for group in groups for run in group.runs)
    return next((measure for measure in measures if measure is not ACCURACY), ACCURACY)


def round_axis(axes: Axes, margin: float | None = None) -> None:
    """Format the horizontal axis as rounds."""
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("round")
    axes.margins(x=margin)


def score_axis(axes: Axes, measure: Measure) -> None:
    """Format the vertical axis as scores, and draw a legend."""
    percent_axes(axes.yaxis, measure=measure)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    legend(axes)


def percent_axes(*axes: Axis, measure: Measure = ACCURACY) -> None:
    """Format axes of shares in percent; those of another measure have its title instead."""
    for axis in axes:
        if measure is ACCURACY:
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        else:
            axis.set_label_text(measure.title)


def size_axis(axis: Axis) -> None:
    """Format an axis as bytes."""
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda n, _: size(n)))


def legend(axes: Axes) -> None:
    """Draw a legend if there are 2 to 10 lines: beside them, or below if it is too long."""
    handles, names = axes.get_legend_handles_labels()
    if 1 < len(handles) <= 10:
        figure = axes.get_figure(root=True)
        assert figure is not None
        wrapped = [in_lines(name, BESIDE) for name in names]
        if sum(name.count("\n") + 1 for name in wrapped) <= LINES:
            figure.legend(handles, wrapped, loc="outside right upper", fontsize=9.0)
        else:
            figure.legend(handles, names, loc="outside lower left", fontsize=9.0)


def in_lines(name: str, width: int) -> str:
    """Return a name in lines of at most ``width`` characters."""
    return "\n".join(textwrap.wrap(name, width, break_on_hyphens=False)) or name


def legend_above(figure: Figure, handles: Mapping[str, Patch]) -> None:
    """Draw a legend above the axes."""
    if handles:
        figure.legend(
            handles.values(), map(legend_label, handles), loc="outside upper left",
            ncols=min(len(handles), int(figure.get_figwidth() * 1.05)),
            columnspacing=1.4, handleheight=0.8, borderaxespad=0.0,
        )  # fmt: skip
