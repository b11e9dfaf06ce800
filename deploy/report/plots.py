"""The report's plots by round, bytes or time, one function each.

They are built from matplotlib objects (no pyplot, no state). A function takes groups of runs, or
one run, and returns a Figure. A group of several runs is drawn as the mean over its seeds with a
band of ± one sample standard deviation. Texts are drawn literally: model and metric names come from
clients, and ``$`` in them does not start a formula. Every point, bar and bubble shows its value on
hover (``style.set_hover_texts``).
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from common.journal import Entry
from deploy.report.groups import Group
from deploy.report.groups import spread as over_seeds
from deploy.report.read import Run, scalars, total
from deploy.report.style import (
    MUTED,
    NAME,
    PAPER,
    frame,
    legend,
    legend_above,
    series,
    set_bar_texts,
    set_hover_texts,
    set_percents,
    style,
    visible,
)
from deploy.report.table import clean, duration, number, percent, size

Groups = Sequence[Group]

# Inches for half, full and a third of the page's width, so that all texts have the same size.
HALF, WIDE, THIRD = (6.2, 3.1), (13.0, 3.4), (3.95, 2.1)
PHASES = ("select", "clients", "step", "statistics", "score", "client scores", "checkpoint")
"""Phases in a round's order."""
BARS = 80  # most rounds that are drawn as bars; more are drawn as areas
MARKS = 60  # most points of a line with a hover text

Point = tuple[float, float, str]
"""x, y and the hover text."""
Course = dict[int, tuple[float, float]]
"""Round -> (x, y) of its point."""


@style()
def accuracy(groups: Groups) -> Figure:
    """Plot the primary accuracy by round; for one run also its other accuracies, dashed."""
    figure, axes = frame(HALF)
    _lines(axes, groups, lambda run: {t: (t, a) for t, a in run.accuracies()}, _share)
    for run in groups[0].runs if len(groups) == 1 and not groups[0].several else ():
        if run.accuracies():
            t, best = run.best()
            (dot,) = axes.plot([t], [best], "o", color=series(0), markersize=6)
            set_hover_texts(dot, [f"round {t}: {_share(best)}"])
            side = "right" if t > sum(axes.get_xlim()) / 2 else "left"
            axes.annotate(
                f"best {percent(best)}", (t, best), (0, 8), textcoords="offset points",
                ha=side, color=MUTED, fontsize=9.0,
            )  # fmt: skip
        further = [(e.round, _further(e)) for e in run.entries]
        names = dict.fromkeys(name for _, accuracies in further for name in accuracies)
        for i, name in enumerate(names, start=1):
            scored = [(t, accuracies[name]) for t, accuracies in further if name in accuracies]
            points = [(t, v, f"{name}, round {t}: {_share(v)}") for t, v in scored]
            _line(axes, points, name, i, further=True)
    _over_rounds(axes, margin=0.02)
    _as_shares(axes)
    return figure


def _further(entry: Entry) -> dict[str, float]:
    """Return the accuracies of a round beside the primary one, by name."""
    personal, accuracies = entry.personal, dict[str, float]()
    if entry.primary == "personal":
        accuracies |= {"worst tenth of clients": personal.worst_tenth} if personal else {}
        accuracies |= {"global model": entry.accuracy} if entry.accuracy is not None else {}
    elif personal:
        accuracies["personal"] = personal.accuracy
    return accuracies | entry.accuracies


def loss(groups: Groups) -> Figure:
    """Plot the server's test loss by round."""
    return _curves(groups, lambda e: e.loss, HALF)


def metric(groups: Groups, name: str) -> Figure:
    """Plot one of the method's scalars by round, as a small multiple."""
    return _curves(groups, lambda e: scalars(e).get(name), THIRD)


def bytes_by_round(run: Run) -> Figure:
    """Plot the bytes of each round, down to the clients and up to the server; 0 is the census."""
    ways = {way: _finite(e.bytes.get(way, 0) for e in run.entries) for way in ("down", "up")}
    figure, axes = _stacked(run, ways, size)
    _sizes(axes.yaxis)
    return figure


def seconds_by_round(run: Run) -> Figure:
    """Plot the seconds of each round by phase; time outside the phases is ``other``."""
    timed = dict.fromkeys(n for e in run.entries for n in e.seconds if n != "total")
    names = sorted(timed, key=lambda n: PHASES.index(n) if n in PHASES else len(PHASES))
    phases = {n: _finite(e.seconds.get(n, 0.0) for e in run.entries) for n in names}
    totals = _finite(total(e) for e in run.entries)
    other = np.maximum(totals - sum(phases.values(), start=np.zeros(len(totals))), 0.0)
    if other.sum() > 0.01 * totals.sum():
        phases["other"] = other
    figure, axes = _stacked(run, phases, duration)
    axes.set_ylabel("seconds")
    return figure


def by_bytes(groups: Groups) -> Figure:
    """Plot the primary accuracy against the bytes sent so far, up and down."""
    cost = "bytes sent, up and down"
    return _against(groups, lambda e: e.bytes.get("up", 0) + e.bytes.get("down", 0), size, cost)


def by_time(groups: Groups) -> Figure:
    """Plot the primary accuracy against the seconds elapsed so far."""
    return _against(groups, total, duration, "seconds")


def finite_or_nan(x: float | None) -> float:
    """Return a number; NaN, which matplotlib omits, for one that is missing or not finite."""
    return x if x is not None and math.isfinite(x) else math.nan


def _finite(values: Iterable[float]) -> np.ndarray:
    return np.array([value if math.isfinite(value) else 0.0 for value in values])


def _share(value: float) -> str:
    return percent(value, 2)


def _hover_points(axes: Axes, points: Sequence[Point], i: int) -> None:
    """Draw invisible marks with hover texts on a line of series i, at most ``MARKS`` points."""
    chosen = points[:: -max(1, math.ceil(len(points) / MARKS))]
    if chosen:
        x, y, texts = zip(*chosen, strict=True)
        (marks,) = axes.plot(x, y, "o", color=series(i), markersize=7, alpha=0)
        set_hover_texts(marks, texts)


def _line(
    axes: Axes, points: Sequence[Point], label: str, i: int, *, further: bool = False
) -> None:
    """Draw series i, dashed if ``further``; a single point gets a visible mark."""
    dashes = (1, 1.5) if i >= 8 else (4, 2) if further else None
    axes.plot(
        [x for x, _, _ in points], [y for _, y, _ in points], color=series(i),
        linestyle=(0, dashes) if dashes else "-", linewidth=1.5 if further else 2.0,
        marker="o" if len(points) == 1 else None, markersize=4, label=visible(label),
    )  # fmt: skip
    _hover_points(axes, points, i)


def _lines(
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
        _line(axes, points, group.label, i)


@style()
def _curves(
    groups: Groups, pick: Callable[[Entry], float | None], figsize: tuple[float, float]
) -> Figure:
    def course(run: Run) -> Course:
        chosen = ((e.round, finite_or_nan(pick(e))) for e in run.entries)
        return {t: (t, v) for t, v in chosen if math.isfinite(v)}

    figure, axes = frame(figsize)
    _lines(axes, groups, course, number)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _over_rounds(axes, margin=0.02)
    if figsize != THIRD:  # a small multiple has no room for a legend
        legend(axes)
    return figure


@style()
def _stacked(
    run: Run, stacks: Mapping[str, np.ndarray], write: Callable[[float], str]
) -> tuple[Figure, Axes]:
    """Draw the amounts of each round stacked, as bars, or as areas above ``BARS`` rounds."""
    figure, axes = frame(HALF)
    t, base = np.array([e.round for e in run.entries], dtype=float), np.zeros(len(run.entries))
    rounds, sums = [f"round {x:.0f}" for x in t], sum(stacks.values(), start=base)
    texts = [f"{name}: {write(amount)}" for name, amount in zip(rounds, sums, strict=True)]
    for i, (name, height) in enumerate(stacks.items()):
        parts = [f", {name} {write(amount)}" for amount in height]
        if len(t) > BARS:
            axes.fill_between(t, base, base + height, step="mid", color=series(i), linewidth=0)
            visible = [
                part if amount >= 0.005 else "" for part, amount in zip(parts, height, strict=True)
            ]
            texts = list(map(operator.add, texts, visible))
        else:
            drawn = axes.bar(
                t, height, 0.72, bottom=base, color=series(i), edgecolor=PAPER, linewidth=0.5
            )
            set_bar_texts(drawn, list(map(operator.add, rounds, parts)))
        base = base + height
    if len(t) > BARS:
        _hover_points(axes, list(zip(t, base, texts, strict=True)), len(stacks) - 1)
    _over_rounds(axes)
    legend_above(figure, {name: Patch(color=series(i)) for i, name in enumerate(stacks)})
    return figure, axes


@style()
def _against(
    groups: Groups, cost: Callable[[Entry], float], write: Callable[[float], str], label: str
) -> Figure:
    def course(run: Run) -> Course:
        spent = np.cumsum(_finite(cost(e) for e in run.entries)).tolist()
        pairs = zip(run.entries, spent, strict=True)
        scored = [(e.round, x, a) for e, x in pairs if (a := e.primary_accuracy) is not None]
        return {t: (x, a) for t, x, a in scored if math.isfinite(a)}

    figure, axes = frame(HALF)
    _lines(axes, groups, course, _share, write)
    _as_shares(axes)
    if write is size:
        _sizes(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g}"))
    axes.set_xlabel(label)
    return figure


def _over_rounds(axes: Axes, margin: float | None = None) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("round")
    axes.margins(x=margin)


def _as_shares(axes: Axes) -> None:
    set_percents(axes.yaxis)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    legend(axes)


def _sizes(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda n, _: size(n)))
