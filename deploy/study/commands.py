"""Commands that compare runs: tables, sweeps, and the figures of ``fedmosaic study``."""

from __future__ import annotations

import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.console import (
    Folders,
    Workers,
    answer,
    file_option,
    finish,
    interruptible,
    out,
    out_option,
    picture_option,
    plain,
    print_table,
    progress_bar,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def only(line: str) -> Any:
    """Return the option that selects the cells of a ``line`` (row, column or seed) of a table."""
    return typer.Option(help=f"Only run the cells of this {line}; repeatable.")


def table(
    file: Annotated[Path, typer.Argument(help="A table file, or the name of a bundled table.")],
    to: Annotated[Path | None, out_option("Folder of the record; default: runs/NAME.")] = None,
    workers: Workers = None,
    row: Annotated[list[str] | None, only("row")] = None,
    column: Annotated[list[str] | None, only("column")] = None,
    seed: Annotated[list[int] | None, only("seed")] = None,
    show: Annotated[bool, typer.Option("--show", help="Only show recorded cells.")] = False,
) -> None:
    """Run a table cell by cell and show the results, beside a paper's numbers if it has any.

    Write the table as Markdown, HTML, LaTeX (booktabs), CSV, JSON and PNG. Plot accuracies against
    the megabytes that a client sent.
    """
    from deploy.run import launch
    from deploy.settings import find
    from deploy.study import costs
    from deploy.study import paper_table as tables
    from deploy.study.paper_table import options, selected_cells
    from deploy.study.runner import LEARNT, missing, run_here

    spec = tables.read(file)
    selection = (row or [], column or [], seed or [])
    selected, words = selected_cells(spec, *selection), options(*selection)
    if show and words:
        raise ValueError(f"{words[0]} selects cells to run, and --show runs none: give one of them")
    stem = find(file).stem
    folder = (to or Path("runs") / stem).resolve()

    def announce(i: int, of: int, cell: tables.CellRun, recorded: bool) -> None:
        title = f"{cell.row} × {cell.column}, seed {cell.seed}"
        out.print(f"[bold]cell {i}/{of}[/] {title}{': recorded' if recorded else ''}")

    if not show:
        for note in tables.check(missing(selected, folder)):
            plain(note)
        learnt = folder / LEARNT
        play = partial(launch.cell, workers=workers, console=out, learnt=learnt)
        again = shlex.join(["fedmosaic", "table", str(file), "--out", str(folder), *words])
        with interruptible(again):
            run_here(selected, folder, play, announce)
        if not missing(tables.cells(spec), folder):
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
    from deploy.settings import find
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
    written = sweeps.write(spec, found, folder, stem, find(file).parent)
    finish(written, best=found.best, unfinished=dict(found.unfinished))


def save(figure: Figure, picture: Path) -> None:
    """Write a figure to ``picture`` and print the path."""
    from deploy.report import style

    plain(f"picture: {style.save(figure, picture).resolve()}")


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


def traces(
    file: Annotated[Path, typer.Argument(help="FedScale's traces as JSON, or those of FLASH.")],
    to: Annotated[Path, file_option("--out", "The file of traces, such as trace.jsonl.")],
    clients: Annotated[
        int, typer.Option(min=0, help="Number of clients, from the first on; 0: all.")
    ] = 0,
) -> None:
    """Convert availability traces of FedScale or FLASH for the virtual clock."""
    from deploy.study.traces import convert, write

    found = convert(file, clients)
    for name, why in [*found.unusable.items()][:1]:
        plain(f"without a usable trace: {len(found.unusable)}; the first is {name}: {why}")
    plain(f"{len(found.traces)} traces; available {found.share:.1%} of the time")
    write(found, to)
    finish([to], clients=len(found.traces), left_out=len(found.unusable), share=found.share)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of a client's state.")],
    client: Annotated[
        int | None, typer.Option(help="Number of a client, whose model is wanted.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="safetensors, merged, peft, torch-export or onnx.")
    ] = "safetensors",
    best: Annotated[bool, typer.Option("--best", help="After the best round.")] = False,
    weights: Annotated[
        Path | None,
        typer.Option("--global", help="At a node: the server's model.safetensors, if needed."),
    ] = None,
    to: Annotated[Path | None, file_option("--out", "The file; default: beside the run.")] = None,
) -> None:
    """Write a model for other programs, with its card: classes, mean, deviation, columns.

    On real machines each client exports its own model: RUN is the folder STATE-DIR/EXPERIMENT/K on
    its machine.
    """
    from client_app.store import RUN
    from deploy.study.predictor import SUFFIXES, Predictor

    if form not in SUFFIXES:
        raise ValueError(f"--format {form} is not allowed; allowed: {', '.join(SUFFIXES)}")
    at_node = (run / RUN).exists()
    if at_node and (best or client is not None):
        raise ValueError(f"{run} is the state of one client: give no --client and no --best")
    if weights is not None and not at_node:
        raise ValueError("--global is for the folder of a client's state")
    source = (
        Predictor.at_node(run, weights) if at_node else Predictor.of_run(run, client, best=best)
    )
    name = "exported" if client is None else f"client-{client}"
    written = source.export(to or run / name, form)
    finish(written, classes=list(source.card.classes))


COMMANDS = (table, sweep, export)
FIGURES = (regions, samples, analyse, traces)
"""Commands of ``fedmosaic study``."""
