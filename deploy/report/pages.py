"""report.html: one self-contained page about one run, or about several compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from common.files import write_atomically
from deploy.report import plots, sections
from deploy.report.layout import Card, Page, Section, render
from deploy.report.plots import Named
from deploy.report.read import Run, flat, read
from deploy.report.table import Cell, Table
from deploy.report.text import NONE, clean, duration, number, percent, size

MOST = 3  # settings in a label beside the method; more would not be read


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
    write_atomically(out, render(page).encode())


def one(run: Run) -> Page:
    """The page of a single run."""
    dataset = run.setting("dataset")
    named = [(run.name, run)]
    return Page(
        title=f"{run.name} on {dataset}" if dataset else run.name,
        subtitle=_subtitle(run),
        state="done" if run.finished else "open",
        pill=f"{run.done} rounds" if run.finished else f"unfinished: round {run.reached}",
        tiles=_tiles(run),
        notes=run.notes,
        sections=[
            sections.learning(run),
            sections.clients(run),
            sections.fairness(run),
            sections.data(run),
            sections.cost(run),
            sections.formula_cost(named),
            sections.incentive(run),
            sections.metrics(named),
            sections.failures(named),
            sections.settings(run),
        ],
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
        sections=[
            Section("Results", [Card("", table=_results(named), span=12)]),
            _curves(named),
            _client_spread(named),
            sections.formula_cost(named),
            sections.metrics(named),
            _different_settings(named),
            sections.failures(named),
        ],
    )


def _subtitle(run: Run) -> str:
    told = [(name, run.setting(name)) for name in ("runtime", "seed")]
    parts = [f"{len(run.members)} clients" if run.members else "", ", ".join(run.models())]
    parts += [f"{name} {value}" for name, value in told if value is not None]
    return " · ".join(part for part in parts if part)


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    told = run.headline()
    best_at = f"round {run.best()[0]}" if run.accuracies() else ""
    failed = len(run.failures())
    return [
        ("Final accuracy", percent(told["final"]), f"round {run.done}"),
        ("Best accuracy", percent(told["best"]), best_at),
        ("Last rounds", percent(told["last10"]), "mean of last 10"),
        ("Down", size(run.cost("down")), "server to clients"),
        ("Up", size(run.cost("up")), "clients to server"),
        ("Time", duration(run.seconds()), f"{run.done} rounds"),
        ("Failures", str(failed), "see below" if failed else "every reply was good"),
    ]


def _results(named: Named) -> Table:
    told = [run.headline() for _, run in named]
    best = {
        name: max(range(len(told)), key=lambda i: told[i][name] or -1.0)
        for name in ("final", "best", "last10")
        if any(t[name] is not None for t in told)
    }
    rows: list[list[str | Cell]] = []
    for i, (label, run) in enumerate(named):
        marked = (Cell(percent(v, 2), best=best.get(name) == i) for name, v in told[i].items())
        sent = (size(run.cost("down")), size(run.cost("up")))
        spent = (duration(run.seconds()), str(len(run.failures())))
        done = f"{run.done} / {number(run.rounds)}"
        rows.append([Cell(label, dot=i), done, *marked, *sent, *spent])
    header = ("run", "rounds", "final", "best", "last 10", "down", "up", "time", "failures")
    return Table(header, rows)


def _curves(named: Named) -> Section:
    names = ", ".join(label for label, _ in named)
    curves = {"Accuracy by round": plots.accuracy, "Loss by round": plots.loss}
    if all(e.loss is None for _, run in named for e in run.entries):
        del curves["Loss by round"]
    curves |= {"Accuracy by bytes": plots.by_bytes, "Accuracy by time": plots.by_time}
    cards = [Card(title, draw(named), f"{title} of {names}.") for title, draw in curves.items()]
    return Section("Learning", cards, "Each server's model on its test set.")


def _client_spread(named: Named) -> Section | None:
    if not any(s.accuracy is not None for _, run in named for _, s in run.scores()):
        return None
    alt = "Dots: every client's accuracy by run; a stroke marks the mean."
    card = Card("", plots.spread(named), alt, span=12)
    return Section("Clients", [card], "A dot is a client, the stroke their mean.")


def _different_settings(named: Named) -> Section | None:
    different = differences([run for _, run in named])
    if not different:
        return None
    shown = {n: (NONE if v is None else clean(v, 80) for v in of) for n, of in different.items()}
    rows = [(name, *values) for name, values in shown.items()]
    table = Table(("setting", *(label for label, _ in named)), rows, "l")
    return Section("Settings that differ", [Card("", table=table, span=12)])


def differences(runs: Sequence[Run]) -> dict[str, list[object]]:
    """Setting -> its value in each run (None: not set), for the settings that are not all equal."""
    configs = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    values = {name: [config.get(name) for config in configs] for name in names}
    return {n: v for n, v in values.items() if any(other != v[0] for other in v)}


def labels(runs: Sequence[Run]) -> list[str]:
    """One label per run, all different: the method, and what differs or where it lies."""
    methods = [run.name for run in runs]
    if len(runs) == 1:
        return methods
    shared = set.intersection(*(set(flat(run.config)) for run in runs))
    shared -= {"method", "experiment"}
    found = {n: values for n, values in differences(runs).items() if n in shared}
    told = {n: values for n, values in found.items() if not any(map(_is_place, values))}
    named = [
        ", ".join([m, *(f"{n.rpartition('.')[2]}={clean(v[i], 24)}" for n, v in told.items())])
        for i, m in enumerate(methods)
    ]
    placed = [f"{m} ({clean(run.path.name, 40)})" for m, run in zip(methods, runs, strict=True)]
    for candidate in (methods, named if len(told) <= MOST else methods, placed):
        if len(set(candidate)) == len(runs):
            return candidate
    return [clean(run.path, 160) for run in runs]


def _is_place(value: object) -> bool:
    """Directories differ between runs without telling them apart."""
    return isinstance(value, str) and len(PurePath(value).parts) > 1
