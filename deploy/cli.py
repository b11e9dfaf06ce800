"""``fedmosaic``: run an experiment, list what there is, report, check the installation.

A command imports what it needs when it is called, so that help and mistakes come at once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from common import errors
from deploy.console import (
    INTERRUPTED,
    Answering,
    Experiment,
    RayAddress,
    Settings,
    WarmStart,
    Workers,
    answer,
    finish,
    out,
    place,
    plain,
    red,
    resolved,
)
from deploy.machines import commands as machines

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def only(what: str) -> Any:
    """Return the option that chooses cells of a table."""
    return typer.Option(help=f"Only run the cells of this {what}; repeatable.")


Folders = Annotated[list[Path], typer.Argument(help="Folders of runs.")]


def show_version(wanted: bool) -> None:
    """Print what the census compares, and end."""
    if wanted:
        from common.settings.version import code_version

        print(code_version())
        raise typer.Exit


@app.callback()
def whole(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the release and a fingerprint of the code that both halves share.",
        ),
    ] = False,
) -> None:
    """Federated learning in which every client brings its own model."""


@contextmanager
def told_how_to_go_on(command: str) -> Iterator[None]:
    """Ctrl-C ends the block with one line instead of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        red("interrupted", f"; go on with: {command}")
        raise typer.Exit(INTERRUPTED) from None


@app.command(cls=Answering)
def run(
    experiment: Experiment = None,
    settings: Settings = None,
    runtime: Annotated[str, typer.Option(help="loopback, ray or grpc: where clients run.")] = "",
    workers: Workers = None,
    warm: WarmStart = None,
    ray_address: RayAddress = "",
    to: Annotated[Path | None, place("Folder of the results.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    from_round: Annotated[
        int, typer.Option("--from-round", min=-1, help="With --resume: back to a kept round.")
    ] = -1,
) -> None:
    """Run an experiment; without one, the default: FedORION on digits, six clients."""
    from deploy.run import preload
    from deploy.run import settings as given

    given.check_runtime(runtime, workers)
    asked = given.read(experiment or given.DEFAULT, settings or [])
    if resume is None and workers != 0 and (runtime or asked.runtime) == "loopback":
        preload.begin()  # it imports what clients need while this process imports what follows
    from deploy.run import launch, preflight, progress

    if resume is not None:
        if experiment is not None or to is not None:
            raise ValueError("--resume goes on with a folder's own experiment: give no other")
        overrides = dict(given.parse_override(text) for text in settings or [])
        overrides |= {"from-round": from_round} if from_round >= 0 else {}
        flat, folder = preflight.resumed(resume, overrides, runtime)
    else:
        if from_round >= 0:
            raise ValueError("--from-round is for a run that goes on: give --resume FOLDER too")
        flat, folder = preflight.fresh(asked.resolve(), runtime, to)
    if warm is not None and flat["runtime"] != "grpc":
        option = "--warm-start" if warm else "--cold-start"
        raise ValueError(f"{option} is for --runtime grpc, not {flat['runtime']}")
    cluster = f" --ray-address {ray_address}" if ray_address else ""
    with told_how_to_go_on(f"fedmosaic run --resume {folder}{cluster}"):
        launch.launch(flat, folder, workers, out, warm, ray_address)
    answer(progress.show(folder, out))


@app.command(cls=Answering)
def table(
    file: Annotated[Path, typer.Argument(help="A table file, or the name of one of ours.")],
    to: Annotated[Path | None, place("Folder of the records.")] = None,
    workers: Workers = None,
    row: Annotated[list[str] | None, only("row")] = None,
    column: Annotated[list[str] | None, only("column")] = None,
    seed: Annotated[list[int] | None, only("seed")] = None,
    show: Annotated[bool, typer.Option("--show", help="Only show what is recorded.")] = False,
    canaries: Annotated[
        bool,
        typer.Option(
            "--canaries",
            help="Run no cell: only keep short runs of this machine beside what this code recorded "
            "elsewhere, for claims --check.",
        ),
    ] = False,
) -> None:
    """Run a paper's table cell by cell and show ours beside the paper's numbers.

    It is written as Markdown, HTML, LaTeX (booktabs), CSV, JSON and PNG; accuracies also as a
    picture against the megabytes that a client sent.
    """
    from deploy.report.table import terminal
    from deploy.run import launch
    from deploy.run.settings import find
    from deploy.study import canary, costs, records
    from deploy.study import paper_table as tables
    from deploy.study.paper_table import options, part

    spec = tables.read(file)
    which = (row or [], column or [], seed or [])
    meant, words = part(spec, *which), options(*which)
    if show and words:
        raise ValueError(f"{words[0]} chooses what runs, and --show runs nothing: give one of them")
    stem = find(file).stem
    folder = (to or Path("runs") / stem).resolve()
    play = partial(launch.cell, workers=workers, console=out)
    again = shlex.join(["fedmosaic", "table", str(file), "--out", str(folder), *words])

    def announce(i: int, of: int, cell: tables.CellRun, recorded: bool) -> None:
        what = f"{cell.row} × {cell.column}, seed {cell.seed}"
        out.print(f"[bold]cell {i}/{of}[/] {what}{': recorded' if recorded else ''}")

    def short_runs() -> None:
        canary.keep(spec, folder, play, lambda name: out.print(f"[bold]canary[/] {name}"), meant)

    begun = records.begun(folder)
    if canaries:
        if show:
            raise ValueError("--canaries runs something and --show nothing: give one of them")
        if not begun:
            raise ValueError(f"--canaries is for a record, but {folder} holds none")
        with told_how_to_go_on(f"{again} --canaries"):
            short_runs()
    elif not show:
        learnt = folder / "learnt"  # what clients learn alike in several cells
        with told_how_to_go_on(again):
            if not begun or (canary.load(folder) and not tables.whole(meant, folder)):
                short_runs()
            tables.run(meant, folder, lambda cell, at: play(cell.flat, at, learnt=learnt), announce)
        if tables.whole(list(tables.cells(spec)), folder):
            shutil.rmtree(learnt, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    filled = tables.collect(spec, folder)
    out.print(*terminal(filled.table(), out.width), sep="\n")
    written = tables.write(filled, spec, folder, stem)
    written += costs.pictures(filled, spec, folder, stem)
    finish(written, **tables.told(filled, spec))


@app.command(cls=Answering)
def claims(
    to: Annotated[Path, place("Folder of the page, the JSON, the Markdown.")] = Path("claims"),
    records: Annotated[
        Path | None, typer.Option(help="Folder of recorded tables; default: those of ours.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the records' canaries, and say which are stale.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="Also replace what stands between a document's marks.")
    ] = None,
    workers: Workers = None,
) -> None:
    """Say which of the papers' claims hold here, which do not, and which are undecided."""
    from deploy.report.table import terminal
    from deploy.run import launch
    from deploy.study import canary, claims_page
    from deploy.study import claims as study

    papers = study.read()
    folder = records or study.RESULTS
    if not folder.is_dir():
        raise ValueError(f"--records {folder}: no such folder; it should hold a folder a table")
    if into is not None:
        claims_page.around_marks(into)
    old: dict[str, str] = {}
    if check:
        tables = study.tables(papers)
        with told_how_to_go_on("fedmosaic claims --check"):
            play = partial(launch.cell, workers=workers, console=out)
            old = canary.stale(tables, folder, play, plain)
    judged = study.judge(papers, study.Records(folder), old)
    out.print(*terminal(claims_page.short(judged), out.width, ruled=False), sep="\n")
    written = claims_page.write(judged, to)
    if into is not None:
        claims_page.into(judged, into)
        written.append(into)
    finish(written, claims=claims_page.told(judged))


@app.command("list", cls=Answering)
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, models, datasets, partitions, trackers or settings.")
    ],
    method: Annotated[
        str, typer.Argument(help="settings: those that this method reads, as it resolves them.")
    ] = "",
) -> None:
    """List methods, models, datasets, partitions or trackers; or every setting."""
    from deploy.report.listing import LISTINGS, described, settings
    from deploy.report.table import terminal
    from deploy.run import user_modules

    if what not in LISTINGS:
        raise ValueError(f"list {what} is unknown; allowed: {', '.join(LISTINGS)}")
    if method and what != "settings":
        raise ValueError(f"list {what} takes no method, but {method!r} is given")
    user_modules.look_in(Path(), {"method": method})
    listed = settings(method) if method else LISTINGS[what]()
    out.print(*terminal(listed, ruled=False))
    every = [each._asdict() for each in described(method)] if what == "settings" else None
    answer(every or listed.records())


@app.command(cls=Answering)
def report(
    folders: Folders,
    to: Annotated[Path | None, place("The page; default: report.html there.")] = None,
) -> None:
    """Write one page about a run, or about several compared."""
    from deploy.run import progress

    page = to or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    progress.report(folders, page, out)
    answer({"report": page.resolve()})


def save(figure: Figure, picture: Path) -> None:
    """Write a figure and say where."""
    figure.savefig(picture, dpi=150)
    plain(f"picture: {picture.resolve()}")


@app.command(cls=Answering)
def noise(
    experiment: Experiment = None,
    settings: Settings = None,
    to: Annotated[Path, place("The picture.")] = Path("noise.png"),
) -> None:
    """Draw eight samples of each kind of noise, and time each in the experiment's server step."""
    from common.settings.parse import parse
    from deploy.report.table import terminal
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    parse(flat, every=True)
    times = study.times(flat)
    out.print(*terminal(study.times_table(times), ruled=False))
    save(study.draw_kinds(), to)
    answer({"seconds": [asdict(each) for each in times], "picture": to.resolve()})


@app.command(cls=Answering)
def information(
    experiment: Experiment = Path("noise_information_small"),
    settings: Settings = None,
    repeats: Annotated[int, typer.Option("--seeds", min=1, help="Seeds 1 to this one.")] = 5,
    to: Annotated[Path, place("Folder of what is written.")] = Path("information"),
) -> None:
    """Measure how much noise tells of a teacher, and what a student learns on it."""
    from deploy.report.table import terminal
    from deploy.study import noise as study

    flat = resolved(experiment, settings)
    known = study.load_found(flat, to)
    if known:
        plain(f"{len(known)} teachings are recorded in {to / study.FILE}")

    def tell(one: study.Measurement) -> None:
        known.append(one)
        study.keep_found(known, flat, to)
        plain(
            f"seed {one.seed}, {one.model} ({one.teacher:.1%}), {one.kind}, {one.bn} statistics: "
            f"{one.information:.3f} nats, student {one.student:.1%}"
        )

    with told_how_to_go_on("the same command"):
        found = study.study(flat, range(1, repeats + 1), tuple(known), tell)
    out.print(*terminal(study.table(found), ruled=False))
    written = study.write(found, to)
    told = [asdict(one) for one in found]
    finish(written, found=told, correlations=study.correlations(found))


@app.command(cls=Answering)
def regions(
    folder: Annotated[Path, typer.Argument(help="A finished run on points in the plane.")],
    to: Annotated[Path | None, place("The picture; default: regions.png there.")] = None,
) -> None:
    """Draw the decision regions of a run's clients and server, before and after."""
    from deploy.study.pictures import regions as draw

    picture = to or folder / "regions.png"
    save(draw(folder), picture)
    answer({"picture": picture.resolve()})


@app.command(cls=Answering)
def samples(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run of fedkf or dafl.")],
    images: Annotated[int, typer.Option(min=1, help="Generated images in all.")] = 2000,
    to: Annotated[Path | None, place("The picture; default: there.")] = None,
) -> None:
    """Draw what a run's generators imagine: average images by class, under the real ones."""
    from deploy.study.pictures import samples as write

    picture = (to or folder / "samples.png").resolve()
    counts = write(folder.resolve(), images, picture).counts.tolist()
    out.print(f"images by class: {counts}")
    plain(f"samples: {picture}")
    answer({"images_by_class": counts, "picture": picture})


@app.command(cls=Answering)
def analyse(
    folders: Folders,
    clients: Annotated[int, typer.Option(help="The first so many clients.")] = 10,
    images: Annotated[int, typer.Option(help="The first so many test images.")] = 500,
    label: Annotated[int, typer.Option("--class", help="The class of the t-SNE.")] = 0,
    to: Annotated[Path | None, place("Folder; default: analysis in the first run's.")] = None,
    workers: Workers = None,
) -> None:
    """Compare how clients' networks see: CKA by stage, t-SNE of one class, overheads."""
    from deploy.report.table import terminal
    from deploy.run import launch
    from deploy.study.analyse import analyse as run_analysis

    served = launch.default_workers() if workers is None else workers
    place = to or folders[0] / "analysis"
    written, numbers, found = run_analysis(folders, place, clients, images, label, served)
    out.print(*terminal(numbers, ruled=False))
    finish(written, runs=found)


@app.command(cls=Answering)
def verify(folder: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Say which files of a run are as they were written, and what to do without the others."""
    from deploy.run.verify import verify as examine

    found = examine(folder)
    for one in found:
        plain(str(one))
    answer([asdict(one) for one in found])
    if any(one.state == "damaged" for one in found):
        raise typer.Exit(1)


@app.command(cls=Answering)
def doctor() -> None:
    """Say what is installed, what data is found and which runtimes work."""
    from deploy.run.doctor import examine, show

    found = examine()
    show(found, out)
    answer(asdict(found))
    if not any(check.good for check in found.runtimes if check.name != "loopback"):
        raise typer.Exit(1)


for command in machines.COMMANDS:
    app.command(cls=Answering)(command)
app.command()(machines.node)  # it ends as another program, without a result


def main() -> NoReturn:
    """The console script: every foreseeable error is one line and a non-zero exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own lines, beside ours
    try:
        app(prog_name="fedmosaic")
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not errors.place(error):  # typer's own end
            raise
        red("error:", f" {errors.report(error, errors.HOME)}")
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
