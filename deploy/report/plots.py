"""The report's plots, one function each, on matplotlib's objects alone (no pyplot, no state).

A function takes groups of runs, or one run, and returns a Figure. A group of several runs is a
mean over its seeds, and a band of one sample standard deviation on either side. Every text is
drawn as it stands: model and metric names come from clients, and ``$`` in them is no formula.
Every point, bar and bubble says its value on hover (``style.say``).
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from common.data.picture import bubbles
from common.journal import Entry
from common.metrics import MANY, fairness, over_mixtures, thinned
from common.training.seeds import rng
from deploy.report.groups import Group
from deploy.report.groups import spread as over_seeds
from deploy.report.read import Run, scalars, total
from deploy.report.style import MUTED, PAPER, frame, say, series, style
from deploy.report.table import clean, duration, number, percent, size

Groups = Sequence[Group]
Models = Mapping[str, tuple[list[float], list[int]]]
"""Name to the clients' accuracies, each in [0, 1], and their test samples."""

# Inches, so that type is of one size on the page: half of its width, all of it, a third.
HALF, WIDE, THIRD = (6.2, 3.1), (13.0, 3.4), (3.95, 2.1)
PHASES = ("select", "clients", "step", "statistics", "score", "checkpoint")  # in a round's order
BARS = 80  # rounds; more of them are drawn as steps and areas
LEAST = 5  # clients for whose bars there is room; fewer stand in the middle
LABELLED = 60  # clients that can all be named under their bars
MARKS = 60  # points of a line that say their value
DRAWS = 2000  #: random mixtures of the clients' distributions
CONCENTRATION = 0.3  #: of their Dirichlet: mixtures of a few clients each

Point = tuple[float, float, str]
"""Where it lies, and what it says on hover."""
Course = dict[int, tuple[float, float]]
"""Round to where its point lies."""


@style()
def accuracy(groups: Groups) -> Figure:
    """The server's test accuracy by round; for one run also the method's further accuracies."""
    figure, axes = frame(HALF)
    _lines(axes, groups, lambda run: {t: (t, a) for t, a in run.accuracies()}, _share)
    for run in groups[0].runs if len(groups) == 1 and not groups[0].several else ():
        if run.accuracies():
            t, best = run.best()
            (dot,) = axes.plot([t], [best], "o", color=series(0), markersize=6)
            say(dot, [f"round {t}: {_share(best)}"])
            side = "right" if t > sum(axes.get_xlim()) / 2 else "left"
            axes.annotate(
                f"best {percent(best)}", (t, best), (0, 8), textcoords="offset points",
                ha=side, color=MUTED, fontsize=9.0,
            )  # fmt: skip
        names = dict.fromkeys(name for e in run.entries for name in e.accuracies)
        for i, name in enumerate(names, start=1):
            told = [(e.round, e.accuracies[name]) for e in run.entries if name in e.accuracies]
            points = [(t, v, f"{name}, round {t}: {_share(v)}") for t, v in told]
            _line(axes, points, name, i, further=True)
    _over_rounds(axes, margin=0.02)
    _as_shares(axes)
    return figure


def loss(groups: Groups) -> Figure:
    """The server's test loss by round."""
    return _curves(groups, lambda e: e.loss, HALF)


def metric(groups: Groups, name: str) -> Figure:
    """One of the method's own scalars by round, as a small multiple."""
    return _curves(groups, lambda e: scalars(e).get(name), THIRD)


@style()
def clients(run: Run) -> Figure:
    """Each client's own model, if it has one, and the global one on its test share; by
    architecture."""
    scores = run.scores()
    figure, axes = frame(WIDE)
    models = list(dict.fromkeys([*run.models(), *(member.model for member, _ in scores)]))
    both = run.own_models and any(score.accuracy_global is not None for _, score in scores)
    width, shift = (0.38, 0.19) if both else (0.7, 0.0)
    sole = "own" if run.own_models else "global"
    for j, (member, score) in enumerate(scores):
        i = models.index(member.model)
        of_it = score.accuracy if run.own_models else score.accuracy_global
        bars = [(j - shift, of_it, sole, series(i), 1.0)]
        if both:  # on a ground of paper, else the grid would shine through
            bars.append((j + shift, score.accuracy_global, "global", PAPER, 1.0))
            bars.append((j + shift, score.accuracy_global, "global", series(i), 0.38))
        for x, value, whose, colour, alpha in bars:
            drawn = axes.bar(
                x, _value(value), width, color=colour, edgecolor=PAPER, linewidth=0.6,
                hatch="" if i < 8 else "////" if i < 16 else "....", alpha=alpha,
            )  # fmt: skip
            if colour != PAPER:
                _say_each(drawn, [f"client {score.k}, {whose} model: {percent(value)}"])
    _percents(axes.yaxis)
    middle, half = (len(scores) - 1) / 2, max(len(scores), LEAST) / 2 + 0.2
    axes.set(xlim=(middle - half, middle + half), ylim=(0, 1), xlabel="client")
    ticks = range(0, len(scores), max(1, math.ceil(len(scores) / LABELLED)))
    axes.set_xticks(ticks, [str(scores[j][1].k) for j in ticks])
    handles = {model: Patch(color=series(i)) for i, model in enumerate(models)}
    if both:
        handles["own model"] = Patch(color=MUTED)
        handles["global model"] = Patch(color=MUTED, alpha=0.38)
    else:
        axes.set_ylabel(f"{sole} model")
    _legend_above(figure, handles)
    return figure


@style()
def ascending(run: Run) -> Figure:
    """The accuracies of many clients in ascending order, against the share of them."""
    figure, axes = frame(WIDE)
    told = {"own model": [s.accuracy for _, s in run.scores()]} if run.own_models else {}
    told["global model"] = [s.accuracy_global for _, s in run.scores()]
    handles = dict[str, Patch]()
    for name, values in told.items():
        if known := thinned(sorted(v for v in values if v is not None)):
            colour = series(len(handles))
            axes.plot(np.linspace(0, 1, len(known)), known, color=colour)
            handles[name] = Patch(color=colour)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="clients with at most this accuracy")
    _percents(axes.xaxis, axes.yaxis)
    _legend_above(figure, handles)
    return figure


def spread(groups: Groups) -> Figure:
    """Every client as a dot, the mean over clients, and seeds, as a stroke, one row per group."""
    rows = []
    for group in groups:
        dots = []
        for run in group.runs:
            who = f"seed {run.setting('seed')}, " if group.several else ""
            for _, s in run.scores():
                a = _value(s.accuracy if run.own_models else s.accuracy_global)
                dots += [(a, f"{who}client {s.k}: {percent(a)}")] * math.isfinite(a)
        means = group.values(lambda run: run.mean_on_clients()[1])
        mean = over_seeds(means)[0] if means else math.nan
        whose = group.runs[0].mean_on_clients()[0]
        rows.append((f"{clean(group.label, 36)}\n{whose}", dots, mean))
    said = "accuracy on each client's own test share"
    return _dots((WIDE[0], 0.9 + 0.5 * len(groups)), rows, (None, 1.0), said)


def distribution(models: Models) -> Figure:
    """A row for each model: every client a dot, AMP a stroke."""
    rows = [
        (name, [(value, percent(value)) for value in values], fairness(values, sizes)["amp"])
        for name, (values, sizes) in models.items()
    ]
    height = 1.1 + 0.5 * len(models)
    return _dots((HALF[0], height), rows, (-0.02, 1.02), "accuracy on the own test share")


@style()
def mixtures(models: Models) -> Figure:
    """How accuracy is distributed over random mixtures of clients; dashed: WLP, its floor."""
    figure, axes = frame(HALF)
    for i, (name, (values, _)) in enumerate(models.items()):
        drawn = over_mixtures(values, DRAWS, rng(0, "mixtures"), CONCENTRATION)
        bins = np.linspace(min(values), max(max(values), min(values) + 0.01), 41).tolist()
        counts, _, bars = axes.hist(drawn, bins=bins, color=series(i), alpha=0.45, label=name)
        assert isinstance(bars, BarContainer)
        found = zip(bins, bins[1:], np.ravel(counts), strict=False)
        _say_each(bars, [f"{percent(low)} to {percent(up)}: {int(n)}" for low, up, n in found])
        axes.axvline(min(values), color=series(i), linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set(xlim=(0, 1), ylabel="mixtures")
    axes.set_xlabel("accuracy on a mixture; dashed: the worst client (WLP)", color=MUTED)
    _percents(axes.xaxis)
    axes.legend(loc="upper left")
    return figure


def bytes_by_round(run: Run) -> Figure:
    """Bytes per round: down to the clients and up from them; round 0 is the census."""
    ways = {way: _finite(e.bytes.get(way, 0) for e in run.entries) for way in ("down", "up")}
    figure, axes = _stacked(run, ways, size)
    _sizes(axes.yaxis)
    return figure


def seconds_by_round(run: Run) -> Figure:
    """Where a round's time goes; what no phase accounts for is ``other``."""
    found = dict.fromkeys(n for e in run.entries for n in e.seconds if n != "total")
    names = sorted(found, key=lambda n: PHASES.index(n) if n in PHASES else len(PHASES))
    phases = {n: _finite(e.seconds.get(n, 0.0) for e in run.entries) for n in names}
    whole = _finite(total(e) for e in run.entries)
    other = np.maximum(whole - sum(phases.values(), start=np.zeros(len(whole))), 0.0)
    if other.sum() > 0.01 * whole.sum():
        phases["other"] = other
    figure, axes = _stacked(run, phases, duration)
    axes.set_ylabel("seconds")
    return figure


def by_bytes(groups: Groups) -> Figure:
    """Accuracy against the bytes sent so far, both ways: what an accuracy costs on the wire."""
    cost = "bytes sent, up and down"
    return _against(groups, lambda e: e.bytes.get("up", 0) + e.bytes.get("down", 0), size, cost)


def by_time(groups: Groups) -> Figure:
    """Accuracy against the seconds spent so far."""
    return _against(groups, total, duration, "seconds")


@style()
def partition(run: Run) -> Figure | None:
    """How the classes are spread over the clients, as bubbles; None if the census does not say."""
    members = thinned(run.members)
    held = [member.counts or [] for member in members]
    if len({len(counts) for counts in held}) != 1 or not held[0] or min(map(min, held)) < 0:
        return None
    counts = np.array(held)
    names = run.classes if len(run.classes) == counts.shape[1] else []
    figure = bubbles(counts, classes=[clean(name, 16) for name in names], color=series(0))
    called = names or [str(c) for c in range(counts.shape[1])]
    texts = [
        f"client {members[k].k}, class {called[c]}: {counts[k, c]:,}"
        for k, c in zip(*np.nonzero(counts), strict=True)
    ]
    say(figure.axes[0].collections[0], texts)
    return figure


@style()
def coefficients(c: Sequence[Sequence[float]], ks: Sequence[int]) -> Figure:
    """A square for each pair of clients ``ks``, the fuller the more row k learns from column j."""
    values, n = np.array(c), len(c)
    side = min(max(0.3 * n, 1.6), 5.0)
    figure, axes = frame((side + 0.9, side + 0.7))
    k, j = np.divmod(np.arange(n * n), n)
    full = values[k, j] / max(values.max(), 1e-9)
    size = (0.92 * 72 * side / n) ** 2
    drawn = axes.scatter(j, k, s=size, marker="s", color=series(0), alpha=full, linewidths=0)
    pairs = zip(k, j, strict=True)
    say(drawn, [f"client {ks[a]} from client {ks[b]}: {values[a, b]:.3f}" for a, b in pairs])
    axes.set(xlim=(-0.6, n - 0.4), ylim=(n - 0.4, -0.6))
    axes.grid(False)
    for axis, label in ((axes.xaxis, "from client"), (axes.yaxis, "client")):
        axis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{ks[int(x)]}" if 0 <= x < n else ""))
        axis.set_label_text(label, color=MUTED)
    return figure


def _value(x: float | None) -> float:
    return x if x is not None and math.isfinite(x) else math.nan


def _finite(values: Iterable[float]) -> np.ndarray:
    return np.array([value if math.isfinite(value) else 0.0 for value in values])


def _share(value: float) -> str:
    return percent(value, 2)


def _visible(name: str) -> str:
    """Matplotlib hides a legend's entry whose name starts with an underscore."""
    return "\u200b" + clean(name, 35) if name.startswith("_") else clean(name, 36)


def _say_each(bars: BarContainer, texts: Sequence[str]) -> None:
    for bar, text in zip(bars, texts, strict=True):
        say(bar, [text])


def _hover(axes: Axes, points: Sequence[Point], i: int) -> None:
    """Unseen marks on a line of series i, the last ones of every few if there are many."""
    chosen = points[:: -max(1, math.ceil(len(points) / MARKS))]
    if chosen:
        x, y, texts = zip(*chosen, strict=True)
        (marks,) = axes.plot(x, y, "o", color=series(i), markersize=7, alpha=0)
        say(marks, texts)


def _line(
    axes: Axes, points: Sequence[Point], label: str, i: int, *, further: bool = False
) -> None:
    """Series i, dashed if ``further``; a lone point, which is no line, gets a mark."""
    dashes = (1, 1.5) if i >= 8 else (4, 2) if further else None
    axes.plot(
        [x for x, _, _ in points], [y for _, y, _ in points], color=series(i),
        linestyle=(0, dashes) if dashes else "-", linewidth=1.5 if further else 2.0,
        marker="o" if len(points) == 1 else None, markersize=4, label=_visible(label),
    )  # fmt: skip
    _hover(axes, points, i)


def _lines(
    axes: Axes,
    groups: Groups,
    course: Callable[[Run], Course],
    write: Callable[[float], str],
    at: Callable[[float], str] | None = None,
) -> None:
    """A line for each group: the mean over the rounds that all its runs have, and its band.

    A point says its round, with ``at`` where it lies too, and where there are several its group.
    """
    for i, group in enumerate(groups):
        who = f"{clean(group.label, 36)}, " if len(groups) > 1 else ""
        found = [course(run) for run in group.runs]
        points, bands = list[Point](), list[tuple[float, float, float]]()
        for t in sorted(set.intersection(*map(set, found))):
            there, _ = over_seeds([each[t][0] for each in found])
            mean, deviation = over_seeds([each[t][1] for each in found])
            where = f", {at(there)}" if at else ""
            more = f" ± {write(deviation)}" if group.several else ""
            points.append((there, mean, f"{who}round {t}{where}: {write(mean)}{more}"))
            bands.append((there, mean - deviation, mean + deviation))
        if group.several and bands:
            x, low, high = zip(*bands, strict=True)
            axes.fill_between(x, low, high, color=series(i), alpha=0.18, linewidth=0)
        _line(axes, points, group.label, i)


@style()
def _curves(
    groups: Groups, pick: Callable[[Entry], float | None], figsize: tuple[float, float]
) -> Figure:
    def course(run: Run) -> Course:
        chosen = ((e.round, _value(pick(e))) for e in run.entries)
        return {t: (t, v) for t, v in chosen if math.isfinite(v)}

    figure, axes = frame(figsize)
    _lines(axes, groups, course, number)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _over_rounds(axes, margin=0.02)
    if figsize != THIRD:  # a small multiple has no room for a legend
        _legend(axes, "upper right")
    return figure


@style()
def _stacked(
    run: Run, stacks: Mapping[str, np.ndarray], write: Callable[[float], str]
) -> tuple[Figure, Axes]:
    """Draw what each round took, stacked: bars, or areas where there are more than ``BARS``."""
    figure, axes = frame(HALF)
    t, base = np.array([e.round for e in run.entries], dtype=float), np.zeros(len(run.entries))
    rounds, sums = [f"round {x:.0f}" for x in t], sum(stacks.values(), start=base)
    texts = [f"{name}: {write(amount)}" for name, amount in zip(rounds, sums, strict=True)]
    for i, (name, height) in enumerate(stacks.items()):
        said = [f", {name} {write(amount)}" for amount in height]
        if len(t) > BARS:
            axes.fill_between(t, base, base + height, step="mid", color=series(i), linewidth=0)
            seen = [
                text if amount >= 0.005 else "" for text, amount in zip(said, height, strict=True)
            ]
            texts = list(map(operator.add, texts, seen))
        else:
            drawn = axes.bar(
                t, height, 0.72, bottom=base, color=series(i), edgecolor=PAPER, linewidth=0.5
            )
            _say_each(drawn, list(map(operator.add, rounds, said)))
        base = base + height
    if len(t) > BARS:
        _hover(axes, list(zip(t, base, texts, strict=True)), len(stacks) - 1)
    _over_rounds(axes)
    _legend_above(figure, {name: Patch(color=series(i)) for i, name in enumerate(stacks)})
    return figure, axes


@style()
def _against(
    groups: Groups, cost: Callable[[Entry], float], write: Callable[[float], str], said: str
) -> Figure:
    def course(run: Run) -> Course:
        spent = np.cumsum(_finite(cost(e) for e in run.entries)).tolist()
        told = zip(run.entries, spent, strict=True)
        scored = [(e.round, x, e.accuracy) for e, x in told if e.accuracy is not None]
        return {t: (x, a) for t, x, a in scored if math.isfinite(a)}

    figure, axes = frame(HALF)
    _lines(axes, groups, course, _share, write)
    _as_shares(axes)
    if write is size:
        _sizes(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g}"))
    axes.set_xlabel(said)
    return figure


@style()
def _dots(
    figsize: tuple[float, float],
    rows: Sequence[tuple[str, list[tuple[float, str]], float]],
    limits: tuple[float | None, float],
    said: str,
) -> Figure:
    """A row each: its name, its dots (value and hover text), and a stroke at its centre."""
    figure, axes = frame(figsize)
    for i, (_, dots_of_row, centre) in enumerate(rows):
        shown = thinned(sorted(dots_of_row)) if len(dots_of_row) > MANY else dots_of_row
        values, texts = [value for value, _ in shown], [text for _, text in shown]
        lift = 0.13 * np.sin(2.4 * np.arange(len(values)))  # so that equal dots stay visible
        (dots,) = axes.plot(values, i + lift, "o", color=series(i), alpha=0.55, markeredgewidth=0)
        say(dots, texts)
        axes.plot([centre] * 2, [i - 0.32, i + 0.32], color=series(i), linewidth=2.6)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set(xlim=limits, ylim=(len(rows) - 0.5, -0.5), xlabel=said)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    _percents(axes.xaxis)
    return figure


def _over_rounds(axes: Axes, margin: float | None = None) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("round")
    axes.margins(x=margin)


def _as_shares(axes: Axes) -> None:
    _percents(axes.yaxis)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    _legend(axes, "lower right")


def _percents(*axes: Axis) -> None:
    for axis in axes:
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _sizes(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda n, _: size(n)))


def _legend(axes: Axes, loc: Literal["lower right", "upper right"]) -> None:
    """Name the lines inside the axes, where there is more than one and not too many."""
    if 1 < len(axes.get_legend_handles_labels()[0]) <= 10:
        axes.legend(loc=loc)


def _legend_above(figure: Figure, handles: Mapping[str, Patch]) -> None:
    if handles:
        figure.legend(
            handles.values(), map(_visible, handles), loc="outside upper left",
            ncols=min(len(handles), int(figure.get_figwidth() * 1.05)),
            columnspacing=1.4, handleheight=0.8, borderaxespad=0.0,
        )  # fmt: skip
