"""report.html: one self-contained page about one run, or about several compared."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.report import amounts, fairness, figures, sections
from deploy.report import traffic as communication
from deploy.report.clean import clean
from deploy.report.figures import Named
from deploy.report.labels import differences, labels
from deploy.report.page import Card, Grid, Page, Section, Tile, render
from deploy.report.read import Run, read
from deploy.report.svg import inline


def write_report(dirs: list[Path], out: Path) -> None:
    """Read the runs in ``dirs`` and write the page to ``out``, atomically.

    ValueError if a directory is no run's, is named twice, or none is named.
    """
    if not dirs:
        raise ValueError("no directory given: a report needs at least one run's directory")
    places = [directory.resolve() for directory in dirs]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ValueError(f"{dirs[i]}: given twice; compare different runs")
    runs = [read(place) for place in places]
    page = one(runs[0]) if len(runs) == 1 else several(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    unfinished.write_text(render(page), encoding="utf-8")
    unfinished.replace(out)


def one(run: Run) -> Page:
    """The page of a single run."""
    method = run.setting("method") or clean(run.path.name, 60)
    dataset = run.setting("dataset")
    named = [(method, run)]
    return Page(
        title=f"{method} on {dataset}" if dataset else method,
        subtitle=_subtitle(run),
        state="done" if run.finished else "open",
        pill=_pill(run),
        tiles=_tiles(run),
        notes=run.notes,
        sections=sections.present(
            [
                sections.learning(run),
                sections.clients(run),
                fairness.fairness(run),
                sections.data(run),
                sections.cost(run),
                communication.formula(named),
                communication.incentive(run),
                sections.metrics(named),
                sections.failures(named),
                sections.settings(run),
            ]
        ),
    )


def several(runs: list[Run]) -> Page:
    """The page of runs compared: their curves overlaid, their numbers in one table."""
    named = list(zip(labels(runs), runs, strict=True))
    open_ = sum(not run.finished for run in runs)
    datasets = dict.fromkeys(run.setting("dataset") or "unknown data" for run in runs)
    return Page(
        title=f"{len(runs)} runs compared",
        subtitle=" · ".join(datasets),
        state="open" if open_ else "done",
        pill=f"{open_} unfinished" if open_ else "all finished",
        tiles=(),
        notes=[f"{label}: {note}" for label, run in named for note in run.notes],
        sections=sections.present(
            [
                Section("Results", [Card("", grid=_results(named), span=12)]),
                _curves(named),
                _client_spread(named),
                communication.formula(named),
                sections.metrics(named),
                _different_settings(named),
                sections.failures(named),
            ]
        ),
    )


def _subtitle(run: Run) -> str:
    parts = [f"{len(run.peers)} clients" if run.peers else "", ", ".join(run.models())]
    for name in ("runtime", "seed"):
        value = run.setting(name)
        if value is not None:
            parts.append(f"{name} {value}")
    return " · ".join(part for part in parts if part)


def _pill(run: Run) -> str:
    of = "" if run.rounds is None else f" of {run.rounds}"
    return f"{run.done} rounds" if run.finished else f"unfinished: round {run.done}{of}"


def _tiles(run: Run) -> list[Tile]:
    told = run.headline()
    points = run.accuracies()
    best_at = f"round {max(points, key=lambda point: point[1])[0]}" if points else ""
    failed = len(run.failures())
    return [
        Tile("Final accuracy", amounts.percent(told["final"]), f"round {run.done}"),
        Tile("Best accuracy", amounts.percent(told["best"]), best_at),
        Tile("Last rounds", amounts.percent(told["last10"]), "mean of last 10"),
        Tile("Down", amounts.size(run.cost("down")), "server to clients"),
        Tile("Up", amounts.size(run.cost("up")), "clients to server"),
        Tile("Time", amounts.duration(run.seconds()), f"{run.done} rounds"),
        Tile("Failures", str(failed), "see below" if failed else "every reply was good"),
    ]


def _results(named: Named) -> Grid:
    told = [run.headline() for _, run in named]
    best = {
        (max(range(len(told)), key=lambda i: told[i][name] or -1.0), column)
        for column, name in enumerate(("final", "best", "last10"), start=2)
        if any(t[name] is not None for t in told)
    }
    rows = [
        (
            label,
            f"{run.done} / {amounts.number(run.rounds)}",
            amounts.percent(t["final"], 2),
            amounts.percent(t["best"], 2),
            amounts.percent(t["last10"], 2),
            amounts.size(run.cost("down")),
            amounts.size(run.cost("up")),
            amounts.duration(run.seconds()),
            str(len(run.failures())),
        )
        for (label, run), t in zip(named, told, strict=True)
    ]
    header = ("run", "rounds", "final", "best", "last 10", "down", "up", "time", "failures")
    return Grid(header, rows, frozenset(range(1, 9)), range(len(rows)), frozenset(best))


def _curves(named: Named) -> Section:
    names = ", ".join(label for label, _ in named)
    drawn = [("Accuracy by round", figures.accuracy(named), "accuracy")]
    if any(e.loss is not None for _, run in named for e in run.entries):
        drawn.append(("Loss by round", figures.loss(named), "loss"))
    drawn.append(("Accuracy by bytes", figures.by_traffic(named), "by-traffic"))
    drawn.append(("Accuracy by time", figures.by_time(named), "by-time"))
    cards = [Card(title, svg=inline(f, name, f"{title} of {names}.")) for title, f, name in drawn]
    return Section("Learning", cards, "Each server's model on its test set.")


def _client_spread(named: Named) -> Section | None:
    if not any(s.accuracy is not None for _, run in named for s in run.scores()):
        return None
    alt = "Dots: every client's accuracy by run; a stroke marks the mean."
    card = Card("", svg=inline(figures.spread(named), "spread", alt), span=12)
    return Section("Clients", [card], "A dot is a client, the stroke their mean.")


def _different_settings(named: Named) -> Section | None:
    different = differences([run for _, run in named])
    if not different:
        return None
    rows = [
        (clean(name, 60), *(amounts.NONE if v is None else clean(v, 80) for v in values))
        for name, values in different.items()
    ]
    grid = Grid(("setting", *(label for label, _ in named)), rows)
    return Section("Settings that differ", [Card("", grid=grid, span=12)])
