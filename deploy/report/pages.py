"""report.html: one self-contained page about one run or a comparison of several."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean

from common import methods
from common.files import write_atomically
from common.measures import MEASURES
from deploy.report import clock, plots, sections
from deploy.report.charts import against, measure_in
from deploy.report.groups import Group, Groups, differences, grouped, half_width, named
from deploy.report.read import Run, read_several
from deploy.report.style import Card, Page, Section, render, render_sortable, single, tabular
from deploy.report.table import NONE, Cell, Table, clean, duration, number, size


def write_report(dirs: list[Path], out: Path) -> None:
    """Read the runs in ``dirs`` and write the page to ``out``, atomically.

    Raises ``ValueError`` if ``dirs`` is empty, has a directory twice or one without a run.
    """
    runs = read_several(dirs)
    page = render(one(runs[0])) if len(runs) == 1 else render_sortable(several(runs))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode())


def one(run: Run) -> Page:
    """Return the page of a single run."""
    dataset = run.setting("dataset")
    alone = [Group(run.name, [run])]
    return Page(
        title=f"{run.name} on {dataset}" if dataset else run.name,
        subtitle=_subtitle(run),
        state="done" if run.finished else "open",
        pill=_state(run),
        tiles=_tiles(run),
        notes=run.notes,
        sections=[
            sections.learning(run),
            sections.clients(run),
            sections.membership(run),
            sections.classes(run),
            sections.outputs(run),
            sections.texts(run),
            sections.fairness(run),
            sections.data_read(run),
            sections.data(run),
            sections.cost(run),
            clock.section(alone),
            sections.formula_cost(alone),
            sections.normalised(alone),
            sections.incentive(run),
            sections.coefficients(run),
            sections.metrics(alone),
            sections.privacy(run),
            sections.failures(alone),
            sections.settings(run),
        ],
    )


def several(runs: list[Run]) -> Page:
    """Return the page that compares runs: overlaid curves and one table of results."""
    groups = grouped(runs)
    open_ = sum(not run.finished for run in runs)
    datasets = dict.fromkeys(run.setting("dataset") or "unknown data" for run in runs)
    return Page(
        title=f"{len(runs)} runs compared",
        subtitle=" · ".join(datasets),
        state="open" if open_ else "done",
        pill=f"{open_} unfinished" if open_ else "all finished",
        tiles=(),
        notes=[f"{label}: {note}" for label, run in named(groups) for note in run.notes],
        sections=[
            _results(groups),
            _curves(groups),
            _client_spread(groups),
            clock.section(groups),
            sections.formula_cost(groups),
            sections.normalised(groups),
            sections.metrics(groups),
            _different_settings(groups),
            sections.failures(groups),
        ],
    )


def _state(run: Run) -> str:
    if not run.finished:
        return f"unfinished: round {run.reached}"
    return f"{run.done} rounds{run.end and f': {run.end}'}"


def _subtitle(run: Run) -> str:
    settings = [(name, run.setting(name)) for name in ("runtime", "seed")]
    method = run.setting("method") or ""
    texts = [method if method != run.name else ""]
    texts += [f"{len(run.members)} clients" if run.members else "", ", ".join(run.models())]
    texts += [f"{name} {value}" for name, value in settings if value is not None]
    texts += [f"{key}: {value}" for key, value in run.labels.items()]
    return " · ".join(text for text in texts if text)


def _has_teachers(run: Run) -> bool:
    """Return whether the server's model learns from the clients' models, by a built-in contract."""
    name = run.config.get("method")
    groups = ("training", "models")
    return name in methods.names() and methods.facts(str(name)).asynchronous in groups


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    headline, title = run.headline(), run.measure.title
    best_at = f"round {run.best()[0]}" if run.accuracies() else ""
    failed = len(run.over("failures"))
    private = run.private
    no_failure = "withheld, see below" if private else "all replies were valid"
    down, up = (NONE if private else size(run.cost(way)) for way in ("down", "up"))
    virtual = run.over("clock")
    on_clock = f"; {duration(virtual.end)} on the clock" if virtual else ""
    staleness = []
    if buffer := run.over("buffer"):
        of = buffer.as_dict()
        hint = f"at most {number(of['oldest'])}; {number(of['in_flight'])} jobs in flight"
        if of["oldest"] and _has_teachers(run):
            hint += "; the server's teachers are of several versions"
        staleness = [("Staleness", f"{of['staleness']:.1f}", hint)]
    return [
        (f"Final {title}", run.text(headline["final"]), f"round {run.done}"),
        (f"Best {title}", run.text(headline["best"]), best_at),
        ("Last rounds", run.text(headline["last10"]), f"mean of last {run.last()}"),
        ("Down", down, "server to clients"),
        ("Up", up, "clients to server"),
        ("Time", duration(run.seconds()), f"{run.done} rounds{on_clock}"),
        *staleness,
        ("Failures", NONE if private else str(failed), "see below" if failed else no_failure),
    ]


def _results(groups: Groups) -> Section:
    """Return a row for each group: means over its seeds ± half of their 95 % intervals."""
    marks = {"global": "", "personal": "personal"}

    def column(name: str) -> list[Cell]:
        return _marked(
            groups, lambda run: (marks[run.primary], run.headline()[name]), _one_score(groups)
        )

    columns = [column(name) for name in ("final", "best", "last10")]
    columns.append(_marked(groups, Run.mean_on_clients, compares=True))
    rows: list[list[str | Cell]] = []
    for i, group in enumerate(groups):
        runs = group.runs
        rounds = dict.fromkeys(f"{run.done} / {number(run.rounds)}" for run in runs)
        down, up = (size(fmean(run.cost(way) for run in runs)) for way in ("down", "up"))
        spent = duration(fmean(run.seconds() for run in runs))
        failed = str(sum(len(run.over("failures")) for run in runs))
        cells = [column[i] for column in columns]
        rows.append([Cell(group.label, dot=i), ", ".join(rounds), *cells, down, up, spent, failed])
    header = ("run", "rounds", "final", "best", "last 10", "on clients")
    table = Table((*header, "down", "up", "time", "failures"), rows)
    lead = (
        "Final, best and last 10: the server's model on its test set, or where marked as personal "
        "the clients' models on their own test samples. On clients: their own models, or the "
        "global one if they have none, on their test shares; "
        f"{sections.MEAN[0].lower()}{sections.MEAN[1:]}.{sections.meanings(groups)}"
    )
    if any(group.several for group in groups):
        lead += " Runs that differ by seed alone are one row: the mean ± half of its 95 % interval."
    return single("Results", lead, table=table)


def _one_score(groups: Groups) -> bool:
    """Return whether all runs have the same primary score, so that their scores compare."""
    return len({run.primary for _, run in named(groups)}) <= 1


def _marked(
    groups: Groups, measure: Callable[[Run], tuple[str, float | None]], compares: bool
) -> list[Cell]:
    """Return a column of results: each group's mean ± half of its interval.

    ``measure``: returns the name of what is measured, shown beside the number, and the number of a
    run. ``compares``: whether numbers of different groups are comparable; then the best is in bold.
    """
    values = [group.values(lambda run: measure(run)[1]) for group in groups]
    means = [fmean(of_group) if of_group else None for of_group in values]
    score, known = measure_in(groups), [mean for mean in means if mean is not None]
    best = score.best(known) if compares and known else None
    cells = []
    for group, mean, of_group in zip(groups, means, values, strict=True):
        half = half_width(of_group)
        aside = "" if half is None else f"± {score.text(half, 2).removesuffix(' %')}"
        aside = f"{aside} {measure(group.runs[0])[0]}".strip()
        cells.append(Cell(score.text(mean, 2), aside, best=mean is not None and mean == best))
    return cells


def _curves(groups: Groups) -> Section:
    names = ", ".join(group.label for group in groups)
    title = measure_in(groups).heading
    curves = {f"{title} by round": plots.score}
    for name in sections.others(groups):
        curves[f"{MEASURES[name].heading} by round"] = partial(plots.other, name=name)
    curves["Loss by round"] = plots.loss
    if all(e.loss is None for _, run in named(groups) for e in run.entries):
        del curves["Loss by round"]
    costs = [cost for cost in plots.COSTS if any(cost.known(run) for _, run in named(groups))]
    curves |= {f"{title} by {cost.name}": partial(against, cost=cost) for cost in costs}
    cards = [Card(title, draw(groups), f"{title} of {names}.") for title, draw in curves.items()]
    kinds = {
        kind: [g.label for g in groups if g.runs[0].primary == kind] for kind in sections.SCORE
    }
    lead = " ".join(
        f"{score}: {', '.join(kinds[kind])}." if not _one_score(groups) else f"{score}."
        for kind, score in sections.SCORE.items()
        if kinds[kind]
    )
    if seeds := [group.label for group in groups if group.several]:
        lead += (
            f" A band is the mean ± one sample standard deviation ({'; '.join(seeds)})"
            ", over the rounds that all seeds have."
        )
    return Section("Learning", cards, lead)


def _client_spread(groups: Groups) -> Section | None:
    if not any(run.on_clients() for _, run in named(groups)):
        return None
    alt = f"Dots: every client's {measure_in(groups).title} by run; a stroke marks the mean."
    lead = (
        "A dot is one client with its own model or the global one (see the row's label). "
        "The stroke is the mean over clients, weighted by their test samples."
    )
    return single("Clients", lead, figure=plots.spread(groups), alt=alt)


def _different_settings(groups: Groups) -> Section | None:
    different = differences([group.runs for group in groups])
    rows = [
        (name, *(NONE if value is None else clean(value, 80) for value in values))
        for name, values in different.items()
    ]
    header = ("setting", *(group.label for group in groups))
    return tabular("Settings that differ", header, rows, align="l")
