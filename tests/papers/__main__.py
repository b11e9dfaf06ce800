"""``python -m tests.papers``: papers' tables, their claims, and figures of papers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from common.files import write_atomically
from deploy.cli import Commands, main
from deploy.console import (
    JsonCommand,
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
    resolved,
)
from deploy.leaderboard import board
from deploy.run import launch
from deploy.study import commands, records
from deploy.study import paper_table as tables
from deploy.study.records import Recorded
from deploy.study.runner import missing
from tests.papers import BUNDLED, RESULTS, canary, claims_page, found, judging, noise, place

PROGRAM = "python -m tests.papers"
KEPT = ("status", "rounds", "seed", "primary.score", "fairness.prototype.amp")
KEPT_CURVES = re.compile(
    r"round|primary|accuracy|accuracies\..*|personal\.accuracy|bytes\.(up|down)|"
    r"flops\.(clients|server)"
)
"""Paths of the summary and names of curves that every tracked record has."""
app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False)
figures = typer.Typer(cls=Commands, no_args_is_help=True)
app.add_typer(figures, name="figures", help="Draw figures of papers and repeat measurements.")


@app.callback()
def options() -> None:
    """Papers' tables, their claims, and figures of papers."""


@app.command(cls=JsonCommand)
def table(
    file: Annotated[Path, typer.Argument(help="A table file, or the name of a paper's table.")],
    to: Annotated[
        Path | None, out_option("Folder of a record to keep, with canaries; default: runs/NAME.")
    ] = None,
    workers: Workers = None,
    row: Annotated[list[str] | None, commands.only("row")] = None,
    column: Annotated[list[str] | None, commands.only("column")] = None,
    seed: Annotated[list[int] | None, commands.only("seed")] = None,
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
    """Run a paper's table as `fedmosaic table` does, with canaries in a record to keep."""
    path = found(file)
    spec = tables.read(path)
    selected = tables.selected_cells(spec, row or [], column or [], seed or [])
    folder = (to or Path("runs") / path.stem).resolve()
    begun = any((folder / name).exists() for name in (records.NAME, records.RUNS))
    if canaries and show:
        raise ValueError("--canaries runs something and --show nothing: give one of them")
    if canaries and not begun:
        raise ValueError(f"--canaries is for a record, but {folder} holds none")
    left = [] if show else missing(selected, folder)
    if canaries or (left and (canary.load(folder) or (to is not None and not begun))):
        for note in tables.check([*canary.first_cells(spec, selected), *left]):
            plain(note)
        play = partial(launch.cell, workers=workers, console=out)
        words = [
            str(file),
            "--out",
            str(folder),
            *tables.options(row or [], column or [], seed or []),
        ]
        again = shlex.join([*PROGRAM.split(), "table", *words, *["--canaries"] * canaries])
        with interruptible(again):
            canary.keep(
                spec, folder, play, lambda name: out.print(f"[bold]canary[/] {name}"), selected
            )
    commands.table(path, folder, workers, row, column, seed, show or canaries)


@app.command(cls=JsonCommand)
def claims(
    paper: Annotated[str, typer.Argument(help="Only show the claims of one paper: fedin, …")] = "",
    to: Annotated[Path, out_option("Folder of the summary, the plots and the JSON.")] = Path(
        "claims"
    ),
    recorded: Annotated[
        Path | None,
        typer.Option("--records", help="Folder of recorded tables; default: those of this folder."),
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
    papers = judging.read()
    if paper:
        papers = [claims_page.find(papers, paper)]
        if into is not None:
            raise ValueError(f"--into takes the claims of all papers: leave {paper} out")
    folder = recorded or RESULTS
    if not folder.is_dir():
        raise ValueError(f"--records {folder}: no such folder; it should hold a folder per table")
    if into is not None:
        claims_page.around_marks(into)
    stale: dict[str, str] = {}
    if check:
        given = {"--out": to, "--records": recorded, "--into": into, "--workers": workers}
        words = [w for key, v in given.items() if v is not None for w in (key, str(v))]
        again = shlex.join([*PROGRAM.split(), "claims", *[paper] * bool(paper), "--check", *words])
        with interruptible(again):
            play = partial(launch.cell, workers=workers, console=out)
            stale = canary.stale(judging.tables(papers), folder, play, plain)
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


@app.command()
def slim() -> None:
    """Reduce the tracked records to what tables, claims, boards and pages read."""
    for folder in sorted([*RESULTS.iterdir(), *(BUNDLED / "results").iterdir()]):
        if (folder / records.NAME).exists():
            cells = records.read(folder).values()
            lines = (slimmed(cell, *read_of(folder.name)).line() for cell in cells)
            write_atomically(folder / records.NAME, b"".join(lines))


def slimmed(cell: Recorded, measures: Collection[str], curves: Collection[str]) -> Recorded:
    """Return the record with what a table reads.

    ``measures``: dotted paths of the summary beside ``KEPT``; ``curves``: names of curves beside
    ``KEPT_CURVES``.
    """
    summary: dict[str, Any] = {}
    for measure in (*KEPT, *map(cell.path, measures)):
        _copy(cell.summary, summary, measure.split("."))
    kept = {
        name: numbers
        for name, numbers in cell.curve.items()
        if name in curves or KEPT_CURVES.fullmatch(name)
    }
    return cell.model_copy(update={"summary": summary, "curve": kept})


def _copy(source: Mapping[str, Any], to: dict[str, Any], path: Sequence[str]) -> None:
    """Copy the value at a path of nested objects, if it exists."""
    name, *inner = path
    if not inner:
        to |= {name: source[name]} if name in source else {}
    elif isinstance(below := source.get(name), Mapping):
        kept: dict[str, Any] = dict(to.get(name) or {})
        _copy(below, kept, inner)
        to |= {name: kept} if kept else {}


def read_of(name: str) -> tuple[Collection[str], Collection[str]]:
    """Return the paths of summaries and the curves that the table or board ``name`` reads."""
    if not (RESULTS / name).is_dir():
        return board.MEASURES, board.CURVES
    file = tables.read(place(name))
    cells = list(tables.cells(file))
    measures = {cell.measure for cell in cells if not cell.line.reach} | {"bytes.up", "flops.total"}
    measures |= {tables.GOAL} if any(m.startswith(tables.TARGET) for m in measures) else set()
    goals = filter(None, map(records.of_cost, measures))
    curves = {curve for cost, *_ in goals for curve in records.COSTS[cost].curves}
    return measures, curves | {cell.measure for cell in cells if cell.line.reach}


Experiment = Annotated[Path | None, typer.Argument(help="An experiment file, or a paper's.")]


@figures.command("noise", cls=JsonCommand)
def kinds_of_noise(
    experiment: Experiment = None,
    settings: Settings = None,
    to: Annotated[Path, picture_option("--out", "Path of the picture.")] = Path("noise.png"),
) -> None:
    """Draw eight samples of each kind of noise, and time each in the experiment's server step."""
    from common.parse import parse
    from deploy.report.style import save

    flat = resolved(experiment and place(experiment), settings)
    parse(flat, every=True)
    times = noise.times(flat)
    print_table(noise.times_table(times), ruled=False)
    picture = save(noise.draw_kinds(), to).resolve()
    plain(f"picture: {picture}")
    answer({"seconds": [asdict(time) for time in times], "picture": picture})


@figures.command(cls=JsonCommand)
def information(
    experiment: Experiment = Path("noise_information_small"),
    settings: Settings = None,
    repeats: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, from 1 on.")] = 5,
    to: Annotated[Path, out_option("Folder of the results.")] = Path("information"),
) -> None:
    """Measure the information of noise about a teacher, and the accuracy of its student."""
    flat = resolved(experiment and place(experiment), settings)
    known = noise.load_measurements(flat, to)
    if known:
        plain(f"{len(known)} measurements are recorded in {to / noise.FILE}")

    def record(one: noise.Measurement) -> None:
        known.append(one)
        noise.save_measurements(known, flat, to)
        plain(
            f"seed {one.seed}, {one.model} ({one.teacher:.1%}), {one.kind}, {one.bn} statistics: "
            f"{one.information:.3f} nats, student {one.student:.1%}"
        )

    with interruptible("the same command"):
        measured = noise.study(flat, range(1, repeats + 1), tuple(known), record)
    print_table(noise.table(measured), ruled=False)
    written = noise.write(measured, to)
    rows = [asdict(one) for one in measured]
    finish(written, found=rows, correlations=noise.correlations(measured))


if __name__ == "__main__":
    main(app, PROGRAM)
