"""The report's plots, one function each, built from matplotlib objects (no pyplot, no state).

A function takes groups of runs, or one run, and returns a Figure. A group of several runs is drawn
as the mean over its seeds with a band of ± one sample standard deviation. Texts are drawn
literally: model and metric names come from clients, and ``$`` in them does not start a formula.
Every point, bar and bubble shows its value on hover (``style.set_hover_texts``).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from common.journal import UNITS, Entry
from common.measures import ACCURACY, Measure
from common.metrics import Confusion, fairness, over_mixtures, thinned
from common.seeds import rng
from deploy.report.charts import (
    HALF,
    NAME,
    THIRD,
    WIDE,
    Cost,
    Line,
    bubbles,
    curves,
    dot_rows,
    draw_groups,
    draw_line,
    finite,
    hover_bars,
    in_lines,
    legend,
    legend_above,
    lines,
    measure_in,
    or_nan,
    percent_axes,
    round_axis,
    score_axis,
    score_limits,
    score_range,
    size_axis,
    squares,
    stacked,
)
from deploy.report.groups import Groups
from deploy.report.groups import spread as over_seeds
from deploy.report.read import Run, scalars, scored, total
from deploy.report.style import INK, MUTED, PAPER, frame, series, set_hover_texts, style
from deploy.report.table import clean, duration, percent, size

Models = Mapping[str, tuple[list[float], list[int]]]
"""Model name -> the clients' scores and their numbers of test samples."""

Outputs = Mapping[str, Line]
"""Label or target -> the samples' true values and predictions."""

PHASES = ("select", "clients", "step", "statistics", "score", "client scores", "checkpoint")
"""Phases in a round's order."""
LEAST = 5  # smallest width of the axis in bars; fewer bars are centred
LABELLED = 60  # most clients that are all labelled under their bars
NUMBERED = 12  # most classes of a confusion matrix with numbers
DRAWS = 2000  #: random mixtures of the clients' distributions
CONCENTRATION = 0.3  #: of their Dirichlet distribution: each mixture has few dominant clients

OTHER = {"global": "personal", "personal": "global model"}
"""Name of the score that is not primary."""

BYTES = Cost(
    "bytes",
    f"{UNITS['bytes'].value} sent, up and down",
    size,
    lambda e: e.bytes.get("up", 0) + e.bytes.get("down", 0),
)
TIME = Cost("time", UNITS["seconds"].value, duration, total)
CLOCK = Cost(
    "time on the clock",
    f"{UNITS['clock'].value} on the virtual clock",
    duration,
    lambda e: e.clock.end if e.clock else None,
    by_round=False,
)
COSTS = (BYTES, TIME, CLOCK)
"""Costs against which a comparison plots scores."""


@style()
def score(groups: Groups) -> Figure:
    """Plot the primary score by round; for one run also its other scores, dashed."""
    figure, axes = frame(HALF)
    measure = measure_in(groups)
    write = partial(measure.text, digits=2)
    draw_groups(axes, groups, lambda run: {t: (t, a) for t, a in run.accuracies()}, write)
    for run in groups[0].runs if len(groups) == 1 and not groups[0].several else ():
        if run.accuracies():
            t, best = run.best()
            (dot,) = axes.plot([t], [best], "o", color=series(0), markersize=6)
            set_hover_texts(dot, [f"round {t}: {write(best)}"])
            side = "right" if t > sum(axes.get_xlim()) / 2 else "left"
            axes.annotate(
                f"best {run.text(best)}", (t, best), (0, 8), textcoords="offset points",
                ha=side, color=MUTED, fontsize=9.0,
            )  # fmt: skip
        further = [(e.round, _further(e)) for e in run.entries]
        names = dict.fromkeys(name for _, accuracies in further for name in accuracies)
        for i, name in enumerate(names, start=1):
            scored = [(t, accuracies[name]) for t, accuracies in further if name in accuracies]
            points = [(t, v, f"{name}, round {t}: {write(v)}") for t, v in scored]
            draw_line(axes, points, name, i, dashed=True)
    round_axis(axes, margin=0.02)
    score_axis(axes, measure)
    return figure


def _further(entry: Entry) -> dict[str, float]:
    """Return the scores of a round beside the primary one, by name."""
    accuracies = {OTHER[entry.primary]: entry.other_score}
    if entry.primary == "personal" and entry.personal:
        accuracies = {"worst tenth of clients": entry.personal.worst_tenth, **accuracies}
    return {n: a for n, a in accuracies.items() if a is not None} | entry.by_model


def loss(groups: Groups) -> Figure:
    """Plot the server's test loss by round."""
    return curves(groups, lambda e: e.loss, HALF)


def other(groups: Groups, name: str) -> Figure:
    """Plot a measure beside the primary one by round."""
    return curves(groups, lambda e: e.others.get(name), HALF)


def metric(groups: Groups, name: str) -> Figure:
    """Plot one of the method's scalars by round, as a small multiple."""
    return curves(groups, lambda e: scalars(e).get(name), THIRD)


@style()
def clients(run: Run) -> Figure:
    """Plot the score of each client's own model, if any, and of the global model on its test
    share, coloured by architecture."""
    scores = run.scores()
    figure, axes = frame(WIDE)
    models = list(dict.fromkeys([*run.models(), *(member.model for member, _ in scores)]))
    both = run.own_models and any(score.shared is not None for _, score in scores)
    width, shift = (0.38, 0.19) if both else (0.7, 0.0)
    sole = "own" if run.own_models else "global"
    for j, (member, score) in enumerate(scores):
        i = models.index(member.model)
        first = score.own if run.own_models else score.shared
        bars = [(j - shift, first, sole, series(i), 1.0)]
        if both:  # an opaque bar below, so that the grid does not show through
            bars.append((j + shift, score.shared, "global", PAPER, 1.0))
            bars.append((j + shift, score.shared, "global", series(i), 0.38))
        for x, value, kind, colour, alpha in bars:
            patches = axes.bar(
                x, or_nan(value), width, color=colour, edgecolor=PAPER, linewidth=0.6,
                hatch="" if i < 8 else "////" if i < 16 else "....", alpha=alpha,
            )  # fmt: skip
            if colour != PAPER:
                text = scored(value, score, run.measure)
                hover_bars(patches, [f"client {score.k}, {kind} model: {text}"])
    percent_axes(axes.yaxis, measure=run.measure)
    middle, half = (len(scores) - 1) / 2, max(len(scores), LEAST) / 2 + 0.2
    limits = score_limits(run.measure, [v for _, s in scores for v in (s.own, s.shared)])
    axes.set(xlim=(middle - half, middle + half), ylim=limits, xlabel="client")
    ticks = range(0, len(scores), max(1, math.ceil(len(scores) / LABELLED)))
    axes.set_xticks(ticks, [str(scores[j][1].k) for j in ticks])
    handles = {model: Patch(color=series(i)) for i, model in enumerate(models)}
    if both:
        handles["own model"] = Patch(color=MUTED)
        handles["global model"] = Patch(color=MUTED, alpha=0.38)
    else:
        shown = "" if run.measure is ACCURACY else f", {run.measure.title}"
        axes.set_ylabel(f"{sole} model{shown}")
    legend_above(figure, handles)
    return figure


@style()
def ascending(run: Run) -> Figure:
    """Plot the sorted scores of many clients against the fraction of clients."""
    figure, axes = frame(WIDE)
    by_model = {"own model": [s.own for _, s in run.scores()]} if run.own_models else {}
    by_model["global model"] = [s.shared for _, s in run.scores()]
    handles = dict[str, Patch]()
    for name, values in by_model.items():
        if known := thinned(sorted(v for v in values if v is not None)):
            colour = series(len(handles))
            axes.plot(np.linspace(0, 1, len(known)), known, color=colour)
            handles[name] = Patch(color=colour)
    limits = score_limits(run.measure, [v for values in by_model.values() for v in values])
    title = f"clients with at most this {run.measure.title}"
    axes.set(xlim=(0, 1), ylim=limits, xlabel=title)
    percent_axes(axes.xaxis)
    percent_axes(axes.yaxis, measure=run.measure)
    legend_above(figure, handles)
    return figure


def spread(groups: Groups) -> Figure:
    """Plot every client as a dot and the mean over clients and seeds as a stroke, a row a group."""
    rows, measure = [], measure_in(groups)
    for group in groups:
        dots = []
        for run in group.runs:
            prefix = f"seed {run.setting('seed')}, " if group.several else ""
            for _, s in run.scores():
                a = or_nan(s.own if run.own_models else s.shared)
                dots += [(a, f"{prefix}client {s.k}: {scored(a, s, measure)}")] * math.isfinite(a)
        means = group.values(lambda run: run.mean_on_clients()[1])
        mean = over_seeds(means)[0] if means else math.nan
        model = group.runs[0].mean_on_clients()[0]
        rows.append((f"{in_lines(clean(group.label, NAME), 36)}\n{model}", dots, mean))
    lines = sum(name.count("\n") for name, *_ in rows)
    height = 0.9 + 0.3 * len(groups) + 0.2 * lines
    return dot_rows((WIDE[0], height), rows, measure, "on each client's own test share")


def distribution(models: Models, measure: Measure = ACCURACY) -> Figure:
    """Plot a row for each model: a dot for every client and a stroke at AMP."""
    rows = [
        (name, [(value, measure.text(value)) for value in values], fairness(values, sizes)["amp"])
        for name, (values, sizes) in models.items()
    ]
    height = 1.1 + 0.5 * len(models)
    return dot_rows((HALF[0], height), rows, measure, "on the own test share")


@style()
def mixtures(models: Models) -> Figure:
    """Plot the histogram of accuracy over random mixtures of clients; dashed: its minimum, WLP."""
    figure, axes = frame(HALF)
    for i, (name, (values, _)) in enumerate(models.items()):
        means = over_mixtures(values, DRAWS, rng(0, "mixtures"), CONCENTRATION)
        bins = np.linspace(min(values), max(max(values), min(values) + 0.01), 41).tolist()
        counts, _, bars = axes.hist(means, bins=bins, color=series(i), alpha=0.45, label=name)
        assert isinstance(bars, BarContainer)
        bounds = zip(bins, bins[1:], np.ravel(counts), strict=False)
        hover_bars(bars, [f"{percent(low)} to {percent(up)}: {int(n)}" for low, up, n in bounds])
        axes.axvline(min(values), color=series(i), linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set_ylabel("mixtures")
    axes.set_xlabel("accuracy on a mixture; dashed: the worst client (WLP)", color=MUTED)
    score_range(axes, ACCURACY, [value for values, _ in models.values() for value in values])
    legend(axes)
    return figure


def bytes_by_round(run: Run) -> Figure:
    """Plot the bytes of each round, down to the clients and up to the server; 0 is the census."""
    ways = {way: finite(e.bytes.get(way, 0) for e in run.entries) for way in ("down", "up")}
    figure, axes = stacked(run, ways, size)
    size_axis(axes.yaxis)
    return figure


def seconds_by_round(run: Run) -> Figure:
    """Plot the seconds of each round by phase; time outside the phases is ``other``."""
    timed = dict.fromkeys(n for e in run.entries for n in e.seconds if n != "total")
    names = sorted(timed, key=lambda n: PHASES.index(n) if n in PHASES else len(PHASES))
    phases = {n: finite(e.seconds.get(n, 0.0) for e in run.entries) for n in names}
    totals = finite(total(e) for e in run.entries)
    other = np.maximum(totals - sum(phases.values(), start=np.zeros(len(totals))), 0.0)
    if other.sum() > 0.01 * totals.sum():
        phases["other"] = other
    figure, axes = stacked(run, phases, duration)
    axes.set_ylabel(UNITS["seconds"].value)
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
    labels = names or [str(c) for c in range(counts.shape[1])]
    noun = run.objective.noun[0]
    texts = [
        f"client {members[k].k}, {noun} {labels[c]}: {counts[k, c]:,}"
        for k, c in zip(*np.nonzero(counts), strict=True)
    ]
    return bubbles(counts, [clean(name, 16) for name in names], texts, noun)


@style()
def coefficients(c: Sequence[Sequence[float]]) -> Figure:
    """Plot a square for each pair of clients: more opaque for a larger coefficient.

    ``c`` [n, n]: row k has the coefficients with which client k learns from the clients j.
    """
    values, n = np.array(c), len(c)
    k, j = np.divmod(np.arange(n * n), n)
    texts = [f"client {a} from client {b}: {c[a][b]:.3f}" for a, b in zip(k, j, strict=True)]
    alpha = values[k, j] / max(values.max(), 1e-9)
    figure, axes = squares((k, j), alpha, n, 0.3, texts)
    for axis, label in ((axes.xaxis, "from client"), (axes.yaxis, "client")):
        axis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{int(x)}" if 0 <= x < n else ""))
        axis.set_label_text(label, color=MUTED)
    return figure


@style()
def by_output(
    names: Sequence[str], scores: Mapping[str, Sequence[float | None]], noun: str
) -> Figure:
    """Plot dots for each label or target; ``scores``: in [0, 1] or at most 1, by their titles."""
    figure, axes = frame(WIDE)
    for i, (title, values) in enumerate(scores.items()):
        known = [or_nan(value) for value in values]
        (dots,) = axes.plot(range(len(names)), known, "os^"[i % 3], color=series(i), label=title)
        texts = zip(names, known, strict=True)
        set_hover_texts(dots, [f"{name}: {title} {v:.3f}" for name, v in texts if v == v])
    few = len(names) <= LABELLED
    ticks = range(len(names)) if few else range(0, len(names), math.ceil(len(names) / 10))
    shown = [clean(names[i], 16) for i in ticks]
    axes.set_xticks(ticks, shown, rotation=90 if max(map(len, shown)) > 8 else 0)
    axes.set_xlabel(noun)
    legend(axes)
    return figure


def label_curves(labels: Outputs) -> dict[str, Figure]:
    """Plot the ROC and the precision-recall curve of each label."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    roc, recall = dict[str, Line](), dict[str, Line]()
    for name, pair in labels.items():
        wrong, right, _ = roc_curve(*pair)
        roc[name] = thinned(wrong), thinned(right)
        precise, found, _ = precision_recall_curve(*pair)
        recall[name] = thinned(found), thinned(precise)
    return {
        "ROC": lines(roc, "false positive rate", "true positive rate"),
        "Precision and recall": lines(recall, "recall", "precision", diagonal=False),
    }


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
    figure, axes = squares((rows, columns), shares, n, 0.45 if shown else 0.25, texts)
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
