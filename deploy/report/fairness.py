"""Fairness over clients: AMP, FM and WLP of every model, and what agnostic domains would see."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from common.metrics import fairness as measures
from common.metrics import over_mixtures
from common.seeds import rng
from deploy.report import amounts
from deploy.report.figures import HALF, style
from deploy.report.page import Card, Grid, Section
from deploy.report.palette import MUTED, series
from deploy.report.read import Run
from deploy.report.svg import inline

DRAWS = 2000  #: random mixtures of the clients' distributions
CONCENTRATION = 0.3  #: of their Dirichlet: mixtures of a few clients each

Models = dict[str, tuple[list[float], list[int]]]
"""Name to the clients' accuracies and their test samples."""


def fairness(run: Run) -> Section | None:
    """The section, or None if fewer than two clients were scored."""
    models = _models(run)
    if not models:
        return None
    worst = {name: min(values) for name, (values, _) in models.items()}
    told = "; ".join(f"{name} {amounts.percent(low)}" for name, low in worst.items())
    spread = inline(distribution(models), "fairness", f"Dots: clients; worst client: {told}.")
    mixed = inline(mixtures(models), "mixtures", f"Accuracy over mixtures; floor: {told}.")
    lead = (
        "AMP: mean over clients, weighted by test samples; FM: variance over clients; WLP: the "
        "worst client. Whatever mixture of clients a model meets, it does no worse than WLP."
    )
    cards = [
        Card("Clients' accuracies", svg=spread, behind=_table(models)),
        Card(f"Accuracy on {DRAWS} random mixtures of clients", svg=mixed),
    ]
    return Section("Fairness", cards, lead)


def distribution(models: Models) -> Figure:
    """A row for each model: every client a dot, AMP a stroke."""
    with style():
        figure = Figure(figsize=(HALF[0], 1.1 + 0.5 * len(models)), layout="constrained")
        axes = figure.add_subplot()
        for i, (values, sizes) in enumerate(models.values()):
            lift = 0.13 * np.sin(2.4 * np.arange(len(values)))  # so that equal dots stay visible
            axes.plot(values, i + lift, "o", color=series(i), alpha=0.55, markeredgewidth=0)
            amp = measures(values, sizes)["amp"]
            axes.plot([amp, amp], [i - 0.32, i + 0.32], color=series(i), linewidth=2.6)
        axes.set_yticks(range(len(models)), list(models))
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("accuracy on the own test share")
        return figure


def mixtures(models: Models) -> Figure:
    """How accuracy is distributed over random mixtures of clients; dashed: WLP, its floor."""
    with style():
        figure = Figure(figsize=HALF, layout="constrained")
        axes = figure.add_subplot()
        for i, (name, (values, _)) in enumerate(models.items()):
            drawn = over_mixtures(values, DRAWS, rng(0, "mixtures"), CONCENTRATION)
            bins = np.linspace(min(values), max(max(values), min(values) + 0.01), 41).tolist()
            axes.hist(drawn, bins=bins, color=series(i), alpha=0.45, label=name)
            axes.axvline(min(values), color=series(i), linestyle=(0, (4, 2)), linewidth=1.5)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("accuracy on a mixture; dashed: the worst client (WLP)", color=MUTED)
        axes.set_ylabel("mixtures")
        axes.legend(loc="upper left")
        return figure


def _models(run: Run) -> Models:
    """Every model that all tested clients scored: named ones, else the global, else the own."""
    scores = [s for s in run.scores() if s.accuracy is not None or s.accuracy_global is not None]
    if len(scores) < 2:
        return {}
    columns: dict[str, list[float | None]] = {
        "own models": [s.accuracy for s in scores],
        _main(run): [s.accuracy_global for s in scores],
    }
    for name in scores[0].accuracies:
        columns[name] = [s.accuracies.get(name) for s in scores]
    if columns["own models"] == columns[_main(run)]:
        del columns["own models"]
    sizes = _test_samples(run)
    models: Models = {}
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        if len(known) == len(scores):
            models[name] = (known, [sizes.get(s.k, 1) for s in scores])
    return models


def _main(run: Run) -> str:
    """What the run's own model is called where several are scored."""
    told = [e.fairness for e in run.entries if e.fairness]
    named = [name for name, v in (told[-1] if told else {}).items() if isinstance(v, dict)]
    further = {name for s in run.scores() for name in s.accuracies}
    rest = [name for name in named if name not in further and name != "own"]
    return rest[0] if rest else "global"


def _test_samples(run: Run) -> dict[int, int]:
    """The clients' test samples as the census found them, at least 1."""
    return {peer.k: max(peer.n_test, 1) for peer in run.peers}


def _table(models: Models) -> Grid:
    rows = []
    for name, (values, sizes) in models.items():
        told = measures(values, sizes)
        rows.append(
            (
                name,
                amounts.percent(told["amp"], 2),
                f"{told['fm']:.5f}",
                amounts.percent(told["wlp"], 2),
            )
        )
    return Grid(("model", "AMP", "FM", "WLP"), rows, frozenset({1, 2, 3}), range(len(rows)))
