"""Commands that compare runs: tables, sweeps, claims, and the figures of ``fedmosaic study``."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.console import (
    Experiment,
    Folders,
    Settings,
    Workers,
    answer,
    finish,
    interruptible,
    out,
    out_option,
    picture_option,
    plain,
    print_table,
    progress_bar,
    resolved,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def only(line: str) -> Any:
    """Return the option that selects the cells of a ``line`` (row, column or seed) of a table."""
    return typer.Option(help=f"Only run the cells of this {line}; repeatable.")


def table(
    file: Annotated[Path, typer.Argument(help="A table file, or the name of a bundled table.")],
    to: Annotated[
        Path | None, out_option("Folder of a record to keep, with canaries; default: runs/NAME.")
    ] = None,
    workers: Workers = None,
    row: Annotated[list[str] | None, only("row")] = None,
    column: Annotated[list[str] | None, only("column")] = None,
    seed: Annotated[list[int] | None, only("seed")] = None,
    show: Annotated[bool, typer.Option("--show", help="Only show recorded cells.")] = False,
    canaries: Annotated[
        bool,
        typer.Option(
            "--canaries",
            help="Run no cell: only add this machine's canaries (short runs for claims --check) "
            "to a record that this code made elsewhere.",
        ),
    ] = False,
) -> None:
    """Run a paper's table cell by cell and show the results beside the paper's numbers.

    Write the table as Markdown, HTML, LaTeX (booktabs), CSV, JSON and PNG. Plot accuracies against
    the megabytes that a client sent.
    """
    from deploy.run import launch
    from deploy.run.settings import find
    from deploy.study import canary, costs, records
    from deploy.study import paper_table as tables
    from deploy.study.paper_table import options, part

    spec = tables.read(file)
    selection = (row or [], column or [], seed or [])
    selected, words = part(spec, *selection), options(*selection)
    if show and words:
        raise ValueError(f"{words[0]} selects cells to run, and --show runs none: give one of them")
    stem = find(file).stem
    folder = (to or Path("runs") / stem).resolve()
    play = partial(launch.cell, workers=workers, console=out)
    again = shlex.join(["fedmosaic", "table", str(file), "--out", str(folder), *words])

    def announce(i: int, of: int, cell: tables.CellRun, recorded: bool) -> None:
        title = f"{cell.row} × {cell.column}, seed {cell.seed}"
        out.print(f"[bold]cell {i}/{of}[/] {title}{': recorded' if recorded else ''}")

    def run_canaries() -> None:
        canary.keep(spec, folder, play, lambda name: out.print(f"[bold]canary[/] {name}"), selected)

    begun = records.begun(folder)
    if canaries and show:
        raise ValueError("--canaries runs something and --show nothing: give one of them")
    if canaries and not begun:
        raise ValueError(f"--canaries is for a record, but {folder} holds none")
    left = [] if canaries or show else tables.missing(selected, folder)
    kept = left and (canary.load(folder) or (to is not None and not begun))
    first = canary.first_cells(spec, selected) if canaries or kept else ()
    for note in tables.check([*first, *left]):
        plain(note)
    if canaries:
        with interruptible(f"{again} --canaries"):
            run_canaries()
    elif not show:
        learnt = folder / "learnt"  # local training that several cells share
        with interruptible(again):
            if kept:
                run_canaries()
            tables.run(
                selected, folder, lambda cell, at: play(cell.flat, at, learnt=learnt), announce
            )
        if not tables.missing(list(tables.cells(spec)), folder):
            shutil.rmtree(learnt, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    filled = tables.collect(spec, folder)
    print_table(filled.table())
    written = tables.write(filled, spec, folder, stem)
    written += costs.pictures(filled, spec, folder, stem)
    finish(written, **tables.as_json(filled, spec))


def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep file.")],
    to: Annotated[Path | None, out_option("Folder of the sweep; default: runs/NAME.")] = None,
    jobs: Annotated[
        int, typer.Option(min=0, max=1024, help="Runs at a time; 0: one for each core.")
    ] = 0,
) -> None:
    """Try configurations of an experiment and choose the best on validation samples.

    A sweep that was interrupted goes on with what is missing. The folder gets the table of all
    configurations, pictures, and the chosen one as an experiment file, chosen.toml.
    """
    from deploy.run.launch import default_workers
    from deploy.run.settings import find
    from deploy.study import sweep as sweeps

    spec = sweeps.read(file)
    folder, stem = sweeps.target(find(file), to)
    at_once = ["--jobs", str(jobs)] if jobs else []
    again = shlex.join(["fedmosaic", "sweep", str(file), "--out", str(folder), *at_once])
    with progress_bar(again, "sweep") as (more, ended):
        found = sweeps.run(spec, folder, jobs or default_workers(), more, ended)
    print_table(found.filled.table())
    for row, why in found.unfinished.items():
        plain(f"{row}: {why}")
    plain(f"best on validation samples: {found.best}" if found.best else "none has finished")
    written = sweeps.write(spec, found, folder, stem)
    finish(written, best=found.best, unfinished=dict(found.unfinished))


def claims(
    paper: Annotated[str, typer.Argument(help="Only show the claims of one paper: fedin, …")] = "",
    to: Annotated[Path, out_option("Folder of the summary, the plots and the JSON.")] = Path(
        "claims"
    ),
    records: Annotated[
        Path | None, typer.Option(help="Folder of recorded tables; default: the bundled ones.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Repeat the records' canaries, and name stale records.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="Also replace the text between the marks in this document.")
    ] = None,
    workers: Workers = None,
) -> None:
    """Judge the papers' claims by recorded tables; with PAPER show one paper and write nothing."""
    from deploy.run import launch
    from deploy.study import canary, claims_page
    from deploy.study import claims as judging

    papers = judging.read()
    if paper:
        papers = [claims_page.find(papers, paper)]
        if into is not None:
            raise ValueError(f"--into takes the claims of all papers: leave {paper} out")
    folder = records or judging.RESULTS
    if not folder.is_dir():
        raise ValueError(f"--records {folder}: no such folder; it should hold a folder per table")
    if into is not None:
        claims_page.around_marks(into)
    stale: dict[str, str] = {}
    if check:
        tables = judging.tables(papers)
        options = {"--out": to, "--records": records, "--into": into, "--workers": workers}
        words = [w for key, v in options.items() if v is not None for w in (key, str(v))]
        again = shlex.join(["fedmosaic", "claims", *[paper] * bool(paper), "--check", *words])
        with interruptible(again):
            play = partial(launch.cell, workers=workers, console=out)
            stale = canary.stale(tables, folder, play, plain)
    judged = judging.judge(papers, judging.Records(folder), stale)
    for one, verdicts in judged:
        plain(f"{one.paper}: {claims_page.sentences(one)}" if paper else one.paper)
        print_table(claims_page.short(verdicts), ruled=False)
        if paper:
            print_table(claims_page.effects(verdicts), ruled=False)
    written = [] if paper else claims_page.write(judged, to)
    if into is not None:
        claims_page.into(judged, into, to)
        written.append(into)
    finish(written, claims=claims_page.as_json(judged))


def save(figure: Figure, picture: Path) -> None:
    """Write a figure to ``picture`` and print the path."""
    from deploy.report import style

    plain(f"picture: {style.save(figure, picture).resolve()}")


def noise(
    experiment: Experiment = None,
    settings: Settings = None,
    to: Annotated[Path, picture_option("--out", "Path of the picture.")] = Path("noise.png"),
) -> None:
    """Draw eight samples of each kind of noise, and time each in the experiment's server step."""
    from common.settings.parse import parse
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    parse(flat, every=True)
    times = study.times(flat)
    print_table(study.times_table(times), ruled=False)
    save(study.draw_kinds(), to)
    answer({"seconds": [asdict(time) for time in times], "picture": to.resolve()})


def information(
    experiment: Experiment = Path("noise_information_small"),
    settings: Settings = None,
    repeats: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, from 1 on.")] = 5,
    to: Annotated[Path, out_option("Folder of the results.")] = Path("information"),
) -> None:
    """Measure the information of noise about a teacher, and the accuracy of its student."""
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    known = study.load_measurements(flat, to)
    if known:
        plain(f"{len(known)} measurements are recorded in {to / study.FILE}")

    def record(one: study.Measurement) -> None:
        known.append(one)
        study.save_measurements(known, flat, to)
        plain(
            f"seed {one.seed}, {one.model} ({one.teacher:.1%}), {one.kind}, {one.bn} statistics: "
            f"{one.information:.3f} nats, student {one.student:.1%}"
        )

    with interruptible("the same command"):
        measured = study.study(flat, range(1, repeats + 1), tuple(known), record)
    print_table(study.table(measured), ruled=False)
    written = study.write(measured, to)
    rows = [asdict(one) for one in measured]
    finish(written, found=rows, correlations=study.correlations(measured))


def regions(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a finished run on points in the plane.")
    ],
    to: Annotated[
        Path | None,
        picture_option("--out", "Path of the picture; default: regions.png in the folder."),
    ] = None,
) -> None:
    """Draw the decision regions of clients and server, before and after training."""
    from deploy.study.pictures import regions as draw

    picture = to or folder / "regions.png"
    save(draw(folder), picture)
    answer({"picture": picture.resolve()})


def samples(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run of fedkf or dafl.")],
    images: Annotated[int, typer.Option(min=1, help="Total number of generated images.")] = 2000,
    to: Annotated[
        Path | None,
        picture_option("--out", "Path of the picture; default: samples.png in the folder."),
    ] = None,
) -> None:
    """Draw mean images by class of a run's generators, below those of the real data."""
    from deploy.study.pictures import samples as write

    picture = (to or folder / "samples.png").resolve()
    counts = write(folder.resolve(), images, picture).counts.tolist()
    out.print(f"images by class: {counts}")
    plain(f"samples: {picture}")
    answer({"images_by_class": counts, "picture": picture})


def analyse(
    folders: Folders,
    clients: Annotated[int, typer.Option(help="Number of clients, from client 0 on.")] = 10,
    images: Annotated[int, typer.Option(help="Number of test images, from the first on.")] = 500,
    label: Annotated[int, typer.Option("--class", help="Class of the t-SNE.")] = 0,
    to: Annotated[
        Path | None, out_option("Folder of the results; default: analysis in the first run's.")
    ] = None,
    workers: Workers = None,
) -> None:
    """Compare the features of clients' networks: CKA by stage, t-SNE of one class; and costs."""
    from deploy.run import launch
    from deploy.study.analyse import analyse as run_analysis

    served = launch.default_workers() if workers is None else workers
    folder = to or folders[0] / "analysis"
    written, numbers, results = run_analysis(folders, folder, clients, images, label, served)
    print_table(numbers, ruled=False)
    finish(written, runs=results)


COMMANDS = (table, sweep, claims)
FIGURES = (noise, information, regions, samples, analyse)
"""Commands of ``fedmosaic study``."""
