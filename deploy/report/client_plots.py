"""The report's plots of clients and classes, one function each, as in ``plots.py``."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from common.data.picture import bubbles
from common.metrics import MANY, Confusion, fairness, over_mixtures, thinned
from common.training.seeds import rng
from deploy.report.groups import spread as over_seeds
from deploy.report.plots import HALF, WIDE, Groups, finite_or_nan
from deploy.report.read import Run
from deploy.report.style import (
    INK,
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
    wrapped,
)
from deploy.report.table import clean, percent

Models = Mapping[str, tuple[list[float], list[int]]]
"""Model name -> the clients' accuracies, in [0, 1], and their numbers of test samples."""

LEAST = 5  # smallest width of the axis in bars; fewer bars are centred
LABELLED = 60  # most clients that are all labelled under their bars
NUMBERED = 12  # most classes of a confusion matrix with numbers
DRAWS = 2000  #: random mixtures of the clients' distributions
CONCENTRATION = 0.3  #: of their Dirichlet distribution: each mixture has few dominant clients


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
                x, finite_or_nan(value), width, color=colour, edgecolor=PAPER, linewidth=0.6,
                hatch="" if i < 8 else "////" if i < 16 else "....", alpha=alpha,
            )  # fmt: skip
            if colour != PAPER:
                set_bar_texts(drawn, [f"client {score.k}, {kind} model: {percent(value)}"])
    set_percents(axes.yaxis)
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
    legend_above(figure, handles)
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
    set_percents(axes.xaxis, axes.yaxis)
    legend_above(figure, handles)
    return figure


def spread(groups: Groups) -> Figure:
    """Plot every client as a dot and the mean over clients and seeds as a stroke, a row a group."""
    rows = []
    for group in groups:
        dots = []
        for run in group.runs:
            prefix = f"seed {run.setting('seed')}, " if group.several else ""
            for _, s in run.scores():
                a = finite_or_nan(s.accuracy if run.own_models else s.accuracy_global)
                dots += [(a, f"{prefix}client {s.k}: {percent(a)}")] * math.isfinite(a)
        means = group.values(lambda run: run.mean_on_clients()[1])
        mean = over_seeds(means)[0] if means else math.nan
        model = group.runs[0].mean_on_clients()[0]
        rows.append((f"{wrapped(clean(group.label, NAME), 36)}\n{model}", dots, mean))
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
        set_bar_texts(bars, [f"{percent(low)} to {percent(up)}: {int(n)}" for low, up, n in bounds])
        axes.axvline(min(values), color=series(i), linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set_ylabel("mixtures")
    axes.set_xlabel("accuracy on a mixture; dashed: the worst client (WLP)", color=MUTED)
    _around(axes, [value for values, _ in models.values() for value in values])
    legend(axes)
    return figure


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
def coefficients(c: Sequence[Sequence[float]], ks: Sequence[int]) -> Figure:
    """Plot a square for each pair of clients ``ks``: more opaque for a larger coefficient.

    ``c`` [n, n]: row k has the coefficients with which client k learns from the clients j.
    """
    values, n = np.array(c), len(c)
    k, j = np.divmod(np.arange(n * n), n)
    pairs = zip(k, j, strict=True)
    texts = [f"client {ks[a]} from client {ks[b]}: {values[a, b]:.3f}" for a, b in pairs]
    alpha = values[k, j] / max(values.max(), 1e-9)
    figure, axes = _squares((k, j), alpha, n, 0.3, texts)
    for axis, label in ((axes.xaxis, "from client"), (axes.yaxis, "client")):
        axis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{ks[int(x)]}" if 0 <= x < n else ""))
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
