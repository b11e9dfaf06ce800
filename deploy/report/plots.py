"""The report's plots, one function each, built from matplotlib objects (no pyplot, no state).

A function takes groups of runs, or one run, and returns a Figure. A group of several runs is drawn
as the mean over its seeds with a band of ± one sample standard deviation. Texts are drawn
literally: model and metric names come from clients, and ``$`` in them does not start a formula.
Every point, bar and bubble shows its value on hover (``style.set_hover_texts``).
"""

import math
import operator
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from common.data.picture import bubbles
from common.journal import Entry
from common.metrics import MANY, Confusion, fairness, over_mixtures, thinned
from common.training.seeds import rng
from deploy.report.groups import Group
from deploy.report.groups import spread as over_seeds
from deploy.report.read import Run, scalars, total
from deploy.report.style import INK, MUTED, PAPER, frame, series, set_hover_texts, style
from deploy.report.table import clean, duration, number, percent, size

Groups = Sequence[Group]
Models = Mapping[str, tuple[list[float], list[int]]]
"""Model name -> the clients' accuracies, in [0, 1], and their numbers of test samples."""

# Inches for half, full and a third of the page's width, so that all texts have the same size.
HALF, WIDE, THIRD = (6.2, 3.1), (13.0, 3.4), (3.95, 2.1)
PHASES = ("select", "clients", "step", "statistics", "score", "client scores", "checkpoint")
"""Phases in a round's order."""
BARS = 80  # most rounds that are drawn as bars; more are drawn as areas
LEAST = 5  # smallest width of the axis in bars; fewer bars are centred
LABELLED = 60  # most clients that are all labelled under their bars
NUMBERED = 12  # most classes of a confusion matrix with numbers
NAME = 160  # most characters of a name in a plot
BESIDE = 26  # characters of a line in a legend beside the plot
LINES = 16  # most lines of a legend beside the plot
MARKS = 60  # most points of a line with a hover text
DRAWS = 2000  #: random mixtures of the clients' distributions
CONCENTRATION = 0.3  #: of their Dirichlet distribution: each mixture has few dominant clients

OTHER = {"global": "personal", "personal": "global model"}
"""Name of the score that is not primary."""

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
    accuracies = {OTHER[entry.primary]: entry.other_accuracy}
    if entry.primary == "personal" and entry.personal:
        accuracies = {"worst tenth of clients": entry.personal.worst_tenth, **accuracies}
    return {n: a for n, a in accuracies.items() if a is not None} | entry.accuracies


def loss(groups: Groups) -> Figure:
    """Plot the server's test loss by round."""
    return _curves(groups, lambda e: e.loss, HALF)


def metric(groups: Groups, name: str) -> Figure:
    """Plot one of the method's scalars by round, as a small multiple."""
    return _curves(groups, lambda e: scalars(e).get(name), THIRD)


@style()
def clients(run: Run) -> Figure:
    """Plot the accuracy of each client's own model, if any, and of the global model on its test
    share, coloured by architecture."""
    scores = run.scores()
    figure, axes = frame(WIDE)
    models = list(dict.fromkeys([*run.models(), *(member.model for member, _ in scores)]))
    both = run.own_models and any(score.accuracy_global is not None for _, score in scores)
    width, shift = (0.38, 0.19) if both else (0.7, 0.0)
    sole = "own" if run.own_models else "global"
    for j, (member, score) in enumerate(scores):
        i = models.index(member.model)
        first = score.accuracy if run.own_models else score.accuracy_global
        bars = [(j - shift, first, sole, series(i), 1.0)]
        if both:  # an opaque bar below, so that the grid does not show through
            bars.append((j + shift, score.accuracy_global, "global", PAPER, 1.0))
            bars.append((j + shift, score.accuracy_global, "global", series(i), 0.38))
        for x, value, kind, colour, alpha in bars:
            drawn = axes.bar(
                x, _value(value), width, color=colour, edgecolor=PAPER, linewidth=0.6,
                hatch="" if i < 8 else "////" if i < 16 else "....", alpha=alpha,
            )  # fmt: skip
            if colour != PAPER:
                _hover_bars(drawn, [f"client {score.k}, {kind} model: {percent(value)}"])
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
    """Plot the sorted accuracies of many clients against the fraction of clients."""
    figure, axes = frame(WIDE)
    accuracies = {"own model": [s.accuracy for _, s in run.scores()]} if run.own_models else {}
    accuracies["global model"] = [s.accuracy_global for _, s in run.scores()]
    handles = dict[str, Patch]()
    for name, values in accuracies.items():
        if known := thinned(sorted(v for v in values if v is not None)):
            colour = series(len(handles))
            axes.plot(np.linspace(0, 1, len(known)), known, color=colour)
            handles[name] = Patch(color=colour)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="clients with at most this accuracy")
    _percents(axes.xaxis, axes.yaxis)
    _legend_above(figure, handles)
    return figure


def spread(groups: Groups) -> Figure:
    """Plot every client as a dot and the mean over clients and seeds as a stroke, a row a group."""
    rows = []
    for group in groups:
        dots = []
        for run in group.runs:
            prefix = f"seed {run.setting('seed')}, " if group.several else ""
            for _, s in run.scores():
                a = _value(s.accuracy if run.own_models else s.accuracy_global)
                dots += [(a, f"{prefix}client {s.k}: {percent(a)}")] * math.isfinite(a)
        means = group.values(lambda run: run.mean_on_clients()[1])
        mean = over_seeds(means)[0] if means else math.nan
        model = group.runs[0].mean_on_clients()[0]
        rows.append((f"{_lines_of(clean(group.label, NAME), 36)}\n{model}", dots, mean))
    lines = sum(name.count("\n") for name, *_ in rows)
    height = 0.9 + 0.3 * len(groups) + 0.2 * lines
    return _dots((WIDE[0], height), rows, "accuracy on each client's own test share")


def distribution(models: Models) -> Figure:
    """Plot a row for each model: a dot for every client and a stroke at AMP."""
    rows = [
        (name, [(value, percent(value)) for value in values], fairness(values, sizes)["amp"])
        for name, (values, sizes) in models.items()
    ]
    height = 1.1 + 0.5 * len(models)
    return _dots((HALF[0], height), rows, "accuracy on the own test share")


@style()
def mixtures(models: Models) -> Figure:
    """Plot the histogram of accuracy over random mixtures of clients; dashed: its minimum, WLP."""
    figure, axes = frame(HALF)
    for i, (name, (values, _)) in enumerate(models.items()):
        drawn = over_mixtures(values, DRAWS, rng(0, "mixtures"), CONCENTRATION)
        bins = np.linspace(min(values), max(max(values), min(values) + 0.01), 41).tolist()
        counts, _, bars = axes.hist(drawn, bins=bins, color=series(i), alpha=0.45, label=name)
        assert isinstance(bars, BarContainer)
        bounds = zip(bins, bins[1:], np.ravel(counts), strict=False)
        _hover_bars(bars, [f"{percent(low)} to {percent(up)}: {int(n)}" for low, up, n in bounds])
        axes.axvline(min(values), color=series(i), linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set_ylabel("mixtures")
    axes.set_xlabel("accuracy on a mixture; dashed: the worst client (WLP)", color=MUTED)
    _around(axes, [value for values, _ in models.values() for value in values])
    _legend(axes)
    return figure


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


@style()
def partition(run: Run) -> Figure | None:
    """Plot the samples per client and class as bubbles; None if the census has no such counts."""
    members = thinned(run.members)
    rows = [member.counts or [] for member in members]
    if len({len(row) for row in rows}) != 1 or not rows[0] or min(map(min, rows)) < 0:
        return None
    counts = np.array(rows)
    names = run.classes if len(run.classes) == counts.shape[1] else []
    figure = bubbles(counts, classes=[clean(name, 16) for name in names], color=series(0))
    labels = names or [str(c) for c in range(counts.shape[1])]
    texts = [
        f"client {members[k].k}, class {labels[c]}: {counts[k, c]:,}"
        for k, c in zip(*np.nonzero(counts), strict=True)
    ]
    set_hover_texts(figure.axes[0].collections[0], texts)
    return figure


@style()
def coefficients(c: Sequence[Sequence[float]]) -> Figure:
    """Plot a square for each pair of clients: more opaque for a larger coefficient.

    ``c`` [n, n]: row k has the coefficients with which client k learns from the clients j.
    """
    values, n = np.array(c), len(c)
    k, j = np.divmod(np.arange(n * n), n)
    texts = [f"client {a} from client {b}: {c[a][b]:.3f}" for a, b in zip(k, j, strict=True)]
    alpha = values[k, j] / max(values.max(), 1e-9)
    figure, axes = _squares((k, j), alpha, n, 0.3, texts)
    for axis, label in ((axes.xaxis, "from client"), (axes.yaxis, "client")):
        axis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{int(x)}" if 0 <= x < n else ""))
        axis.set_label_text(label, color=MUTED)
    return figure


@style()
def confusion(counts: Confusion, classes: Sequence[str]) -> Figure:
    """Plot a square for each pair of class (row) and predicted class (column) that occurs.

    A square is more opaque the larger its share of the class is; for few classes it has the share
    as a number in percent.
    """
    n, samples = len(classes), Counter[int]()
    for label, _, count in counts:
        samples[label] += count
    shares = np.array([count / samples[label] for label, _, count in counts])
    rows, columns = np.array([(label, predicted) for label, predicted, _ in counts]).T
    texts = [
        f"{classes[a]} as {classes[b]}: {count:,}, {percent(share)}"
        for (a, b, count), share in zip(counts, shares, strict=True)
    ]
    shown = n <= NUMBERED
    figure, axes = _squares((rows, columns), shares, n, 0.45 if shown else 0.25, texts)
    for row, column, share in zip(rows, columns, shares, strict=True):
        if shown and share >= 0.005:
            colour = PAPER if share > 0.5 else INK
            rounded = f"{100 * share:.0f}"
            axes.text(column, row, rounded, ha="center", va="center", color=colour, fontsize=9.0)
    few = n <= LABELLED
    ticks = range(n) if few else range(0, n, math.ceil(n / 10))
    names = [clean(classes[c], 16) if few else str(c) for c in ticks]
    axes.set_yticks(ticks, names)
    axes.set_xticks(ticks, names, rotation=90 if max(map(len, names)) > 3 else 0)
    axes.set_ylabel("class")
    axes.set_xlabel("predicted class")
    return figure


def _squares(
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
    drawn = axes.scatter(
        columns, rows, s=area, marker="s", color=series(0), alpha=alpha, linewidths=0
    )
    set_hover_texts(drawn, texts)
    axes.set(xlim=(-0.6, n - 0.4), ylim=(n - 0.4, -0.6))
    axes.grid(False)
    return figure, axes


def _value(x: float | None) -> float:
    return x if x is not None and math.isfinite(x) else math.nan


def _finite(values: Iterable[float]) -> np.ndarray:
    return np.array([value if math.isfinite(value) else 0.0 for value in values])


def _share(value: float) -> str:
    return percent(value, 2)


def _visible(name: str) -> str:
    """Return a legend label; matplotlib hides a label that starts with an underscore."""
    return ("\u200b" if name.startswith("_") else "") + clean(name, NAME)


def _hover_bars(bars: BarContainer, texts: Sequence[str]) -> None:
    for bar, text in zip(bars, texts, strict=True):
        set_hover_texts(bar, [text])


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
        marker="o" if len(points) == 1 else None, markersize=4, label=_visible(label),
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
        chosen = ((e.round, _value(pick(e))) for e in run.entries)
        return {t: (t, v) for t, v in chosen if math.isfinite(v)}

    figure, axes = frame(figsize)
    _lines(axes, groups, course, number)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _over_rounds(axes, margin=0.02)
    if figsize != THIRD:  # a small multiple has no room for a legend
        _legend(axes)
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
            _hover_bars(drawn, list(map(operator.add, rounds, parts)))
        base = base + height
    if len(t) > BARS:
        _hover_points(axes, list(zip(t, base, texts, strict=True)), len(stacks) - 1)
    _over_rounds(axes)
    _legend_above(figure, {name: Patch(color=series(i)) for i, name in enumerate(stacks)})
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


@style()
def _dots(
    figsize: tuple[float, float],
    rows: Sequence[tuple[str, list[tuple[float, str]], float]],
    label: str,
) -> Figure:
    """Draw rows: the name, the dots (value and hover text) and the position of the stroke."""
    figure, axes = frame(figsize)
    for i, (_, dots_of_row, centre) in enumerate(rows):
        shown = thinned(sorted(dots_of_row)) if len(dots_of_row) > MANY else dots_of_row
        values, texts = [value for value, _ in shown], [text for _, text in shown]
        lift = 0.13 * np.sin(2.4 * np.arange(len(values)))  # so that equal dots stay visible
        (dots,) = axes.plot(values, i + lift, "o", color=series(i), alpha=0.55, markeredgewidth=0)
        set_hover_texts(dots, texts)
        axes.plot([centre] * 2, [i - 0.32, i + 0.32], color=series(i), linewidth=2.6)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=label)
    _around(axes, [value for _, dots_of_row, _ in rows for value, _ in dots_of_row])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    return figure


def _around(axes: Axes, values: Sequence[float]) -> None:
    """Let the horizontal axis of accuracies reach beyond their range by 5 %, and at least 1 %."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = max(0.05 * (high - low), 0.01)
    axes.set_xlim(low - margin, high + margin)
    decimals = 0 if high - low > 0.04 else 1
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))


def _over_rounds(axes: Axes, margin: float | None = None) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("round")
    axes.margins(x=margin)


def _as_shares(axes: Axes) -> None:
    _percents(axes.yaxis)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    _legend(axes)


def _percents(*axes: Axis) -> None:
    for axis in axes:
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _sizes(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda n, _: size(n)))


def _legend(axes: Axes) -> None:
    """Draw a legend if there are 2 to 10 lines: beside them, or below if it is too long."""
    handles, names = axes.get_legend_handles_labels()
    if 1 < len(handles) <= 10:
        figure = axes.get_figure(root=True)
        assert figure is not None
        wrapped = [_lines_of(name, BESIDE) for name in names]
        if sum(name.count("\n") + 1 for name in wrapped) <= LINES:
            figure.legend(handles, wrapped, loc="outside right upper", fontsize=9.0)
        else:
            figure.legend(handles, names, loc="outside lower left", fontsize=9.0)


def _lines_of(name: str, width: int) -> str:
    """Return a name in lines of at most ``width`` characters."""
    return "\n".join(textwrap.wrap(name, width, break_on_hyphens=False)) or name


def _legend_above(figure: Figure, handles: Mapping[str, Patch]) -> None:
    if handles:
        figure.legend(
            handles.values(), map(_visible, handles), loc="outside upper left",
            ncols=min(len(handles), int(figure.get_figwidth() * 1.05)),
            columnspacing=1.4, handleheight=0.8, borderaxespad=0.0,
        )  # fmt: skip
