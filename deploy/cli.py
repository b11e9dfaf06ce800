"""Command line ``fedmosaic``.

A command imports its dependencies when it is called, so that help and error messages are fast.
Commands that need no torch do not import it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperGroup

from common import errors
from deploy.console import (
    Answering,
    Experiment,
    Folders,
    RayAddress,
    Settings,
    WarmStart,
    Workers,
    answer,
    finish,
    interruptible,
    out,
    place,
    plain,
    red,
)
from deploy.machines import commands as machines
from deploy.report import chooser
from deploy.study import commands as study

RUN, COMPARE, DEPLOY, INSPECT = "Run", "Compare", "Deploy", "Inspect"  #: headings of the help
MOVED = {command.__name__ for command in study.COMMANDS}  #: commands of earlier releases


class Commands(TyperGroup):
    """Commands of ``fedmosaic``; an unknown name, also of an earlier release, is one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            if name in MOVED:
                raise ValueError(f"{ctx.command_path} {name} is now: fedmosaic study {name}")
            known = ", ".join(self.list_commands(ctx))
            raise ValueError(f"{ctx.command_path} has no command {name!r}; allowed: {known}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


def only(line: str) -> Any:
    """Return the option that selects the cells of a ``line`` (row, column or seed) of a table."""
    return typer.Option(help=f"Only run the cells of this {line}; repeatable.")


def question(key: str) -> Any:
    """Return the option for the answer to one of the chooser's questions."""
    text, answers = chooser.QUESTIONS[key]
    said = "; ".join(f"{answer}: {meaning}" for answer, meaning in answers.items())
    return typer.Option(help=f"With methods: {text} {said}.")


def tcp_port(text: str) -> Any:
    """Return an option for a TCP port."""
    return typer.Option(min=0, max=65535, help=text)


def show_version(wanted: bool) -> None:
    """Print the version that the census compares, and exit."""
    if wanted:
        from common.settings.version import code_version

        print(code_version())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the release and a fingerprint of the code that server and clients share.",
        ),
    ] = False,
) -> None:
    """Federated learning in which every client brings its own model."""


@app.command(cls=Answering, rich_help_panel=RUN)
def run(
    experiment: Experiment = None,
    settings: Settings = None,
    runtime: Annotated[str, typer.Option(help="Where clients run: loopback, ray or grpc.")] = "",
    workers: Workers = None,
    warm: WarmStart = None,
    ray_address: RayAddress = "",
    to: Annotated[Path | None, place("Folder of the results.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    from_round: Annotated[
        int, typer.Option("--from-round", min=-1, help="With --resume: go back to a kept round.")
    ] = -1,
) -> None:
    """Run an experiment; default: FedORION on digits with six clients."""
    from deploy.run import preload
    from deploy.run import settings as reading

    reading.check_runtime(runtime, workers)
    chosen = reading.read(experiment or reading.DEFAULT, settings or [])
    if resume is None and workers != 0 and (runtime or chosen.runtime) == "loopback":
        preload.begin()  # imports the clients' modules in parallel with the imports below
    from deploy.run import launch, preflight, progress

    if resume is not None:
        if experiment is not None or to is not None:
            raise ValueError(
                "--resume takes the experiment from its folder: give no experiment or --out"
            )
        overrides = dict(reading.parse_override(text) for text in settings or [])
        overrides |= {"from-round": from_round} if from_round >= 0 else {}
        flat, folder = preflight.resumed(resume, overrides, runtime)
    else:
        if from_round >= 0:
            raise ValueError("--from-round is for a resumed run: give --resume FOLDER too")
        flat, folder = preflight.fresh(chosen.resolve(), runtime, to)
    if warm is not None and flat["runtime"] != "grpc":
        option = "--warm-start" if warm else "--cold-start"
        raise ValueError(f"{option} is for --runtime grpc, not {flat['runtime']}")
    cluster = f" --ray-address {ray_address}" if ray_address else ""
    with interruptible(f"fedmosaic run --resume {folder}{cluster}"):
        launch.launch(flat, folder, workers, out, warm, ray_address)
    answer(progress.show(folder, out))


@app.command(cls=Answering, rich_help_panel=COMPARE)
def table(
    file: Annotated[Path, typer.Argument(help="A table file, or the name of a bundled table.")],
    to: Annotated[
        Path | None, place("Folder of a record to keep, with canaries; default: runs/NAME.")
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
    from deploy.report.table import terminal
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
    out.print(*terminal(filled.table(), out.width), sep="\n")
    written = tables.write(filled, spec, folder, stem)
    written += costs.pictures(filled, spec, folder, stem)
    finish(written, **tables.as_json(filled, spec))


@app.command(cls=Answering, rich_help_panel=COMPARE)
def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep file.")],
    to: Annotated[Path | None, place("Folder of the sweep; default: runs/NAME.")] = None,
    jobs: Annotated[
        int, typer.Option(min=0, max=1024, help="Runs at a time; 0: one for each core.")
    ] = 0,
) -> None:
    """Try configurations of an experiment and choose the best on validation samples.

    A sweep that was interrupted goes on with what is missing. The folder gets the table of all
    configurations, pictures, and the chosen one as an experiment file, chosen.toml.
    """
    from deploy.report.table import terminal
    from deploy.run.launch import default_workers
    from deploy.study import sweep as sweeps

    spec = sweeps.read(file)
    folder = (to or Path("runs") / file.stem).resolve()
    at_once = ["--jobs", str(jobs)] if jobs else []
    again = shlex.join(["fedmosaic", "sweep", str(file), "--out", str(folder), *at_once])
    with _progress(again, "sweep") as (more, ended):
        found = sweeps.run(spec, folder, jobs or default_workers(), more, ended)
    out.print(*terminal(found.filled.table(), out.width), sep="\n")
    for row, why in found.unfinished.items():
        plain(f"{row}: {why}")
    plain(f"best on validation samples: {found.best}" if found.best else "none has finished")
    written = sweeps.write(spec, found, folder, file.stem)
    finish(written, best=found.best, unfinished=dict(found.unfinished))


@contextlib.contextmanager
def _progress(again: str, word: str) -> Iterator[tuple[Any, Any]]:
    """Show a bar of cells, and yield the functions ``on_batch`` and ``on_cell`` that advance it.

    At Ctrl-C one line names the command ``again``.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(TextColumn(word), BarColumn(), MofNCompleteColumn(), console=out)
    with interruptible(again), bar:
        task = bar.add_task("", total=0)

        def more(cells: int) -> None:
            bar.update(task, total=(bar.tasks[0].total or 0) + cells)

        def ended(cell: Any, why: str) -> None:
            bar.advance(task)
            where = f"{cell.row}, {cell.column}, seed {cell.seed}"
            plain(f"{where}{f': {why}' if why else ''}")

        yield more, ended


@app.command(cls=Answering, rich_help_panel=COMPARE)
def leaderboard(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="With --add: folders of a method's runs.")
    ] = None,
    to: Annotated[
        Path, place("Folder of the record; at first the bundled record is copied there.")
    ] = Path("runs/leaderboard"),
    play: Annotated[bool, typer.Option("--run", help="Run the missing cells.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Time a short run of each row instead.")
    ] = False,
    row: Annotated[
        list[str] | None, typer.Option(help="With --run: only this row; repeatable.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, max=1024, help="With --run: runs at a time; 0: one a core.")
    ] = 0,
    add: Annotated[
        bool, typer.Option("--add", help="Add the runs as a row, if they follow the protocol.")
    ] = False,
    name: Annotated[str, typer.Option(help="With --add: name of the row.")] = "",
    sends: Annotated[str, typer.Option(help="With --add: what leaves a client.")] = "not stated",
    html: Annotated[Path | None, typer.Option(help="Write the page here.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the ranks here (PNG).")] = None,
) -> None:
    """Compare all methods under one protocol: equal budgets, several seeds and partitions.

    Complete rows have ranks among themselves. Missing cells and rows are named.
    """
    from deploy.study import leaderboard as ranking
    from deploy.study import leaderboard_page as pages

    if runs and not add:
        raise ValueError(f"{runs[0]} is given without --add")
    folder = to.resolve()
    board = ranking.open_record(folder)
    board.check_rows(row or [])
    place_ = ranking.add(board, runs or [], name, sends) if add else None
    for line in pages.protocol_lines(board.protocol):
        plain(line)
    if estimate:
        answer(_estimate(board))
        return
    if place_ is not None:
        plain(f"added: {place_.name}, {place_.fleet}")
    if play:
        words = [word for one in row or [] for word in ("--row", one)]
        words += ["--jobs", str(jobs)] if jobs else []
        _play_board(board, row or [], jobs, shlex.join(words))
    found = list(ranking.sections(board))
    _show_board(found)
    written = [*ranking.write(board, folder), pages.write_text(board, found)]
    if html is not None:
        pages.write_html(board, found, html)
        written.append(html)
    if picture is not None:
        if not pages.picture(found, picture):
            raise ValueError(f"--picture {picture}: no row of the leaderboard is complete")
        written.append(picture)
    finish(written, rows=pages.as_json(found))


def _estimate(board: Any) -> dict[str, Any]:
    """Time a short run of each row, and print the cost of the whole board."""
    import tempfile

    from deploy.study import leaderboard as ranking

    seconds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as temporary:
        for place_, spent in ranking.estimate(board, Path(temporary)):
            seconds[place_.name] = spent
            plain(f"{place_.name}: {spent if isinstance(spent, str) else f'{spent:.0f} s a run'}")
    each = ranking.runs_of_a_row(board.protocol)
    hours = each * sum(s for s in seconds.values() if not isinstance(s, str)) / 3600
    plain(f"{len(seconds)} rows of {each} runs: about {hours:.1f} core-hours")
    return {"seconds_a_run": seconds, "runs_a_row": each, "core_hours": hours}


def _play_board(board: Any, rows: list[str], jobs: int, words: str) -> None:
    from deploy.run.launch import default_workers
    from deploy.study import leaderboard as ranking

    again = f"fedmosaic leaderboard --run --out {shlex.quote(str(board.folder))} {words}".strip()
    with _progress(again, "leaderboard") as (more, ended):
        ranking.play(board, rows, jobs or default_workers(), more, ended)


def _show_board(found: list[Any]) -> None:
    from deploy.report.table import terminal
    from deploy.study import leaderboard_page as pages

    for section, one_shot in pages.tables(found):
        out.print(*terminal(pages.table(section, one_shot), out.width), sep="\n")
    for line in pages.incomplete(found):
        plain(line)


@app.command(cls=Answering, rich_help_panel=COMPARE)
def claims(
    paper: Annotated[str, typer.Argument(help="Only show the claims of one paper: fedin, …")] = "",
    to: Annotated[Path, place("Folder of the summary, the plots and the JSON.")] = Path("claims"),
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
    from deploy.report.table import terminal
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
        with interruptible("fedmosaic claims --check"):
            play = partial(launch.cell, workers=workers, console=out)
            stale = canary.stale(tables, folder, play, plain)
    judged = judging.judge(papers, judging.Records(folder), stale)
    for one, verdicts in judged:
        plain(f"{one.paper}: {claims_page.sentences(one)}" if paper else one.paper)
        out.print(*terminal(claims_page.short(verdicts), out.width, ruled=False), sep="\n")
        if paper:
            out.print(*terminal(claims_page.effects(verdicts), out.width, ruled=False), sep="\n")
    written = [] if paper else claims_page.write(judged, to)
    if into is not None:
        claims_page.into(judged, into, to)
        written.append(into)
    finish(written, claims=claims_page.as_json(judged))


@app.command(cls=Answering, rich_help_panel=COMPARE)
def report(
    folders: Folders,
    to: Annotated[Path | None, place("The page; default: report.html in the folder.")] = None,
) -> None:
    """Write one page about a run, or a comparison of several runs."""
    from deploy.report.read import check_journals

    check_journals(folders)
    from deploy.run import progress  # imports torch

    page = to or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    progress.report(folders, page, out)
    answer({"report": page.resolve()})


figures = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode="rich")
for figure in study.COMMANDS:
    figures.command(cls=Answering)(figure)
app.add_typer(
    figures,
    name="study",
    rich_help_panel=COMPARE,
    help="Draw single figures of the papers and repeat their measurements.",
)
for command in machines.COMMANDS:
    app.command(cls=Answering, rich_help_panel=DEPLOY)(command)
app.command(rich_help_panel=DEPLOY)(machines.node)  # becomes another program, so it has no result


@app.command("list", cls=Answering, rich_help_panel=INSPECT)
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, models, datasets, partitions, trackers, selections or settings."
        ),
    ],
    word: Annotated[
        str,
        typer.Argument(
            help="With settings: a method, for the settings that it reads; or a word to search for "
            "in keys and descriptions."
        ),
    ] = "",
    public: Annotated[str, question("public")] = "",
    rounds: Annotated[str, question("rounds")] = "",
    leaves: Annotated[str, question("leaves")] = "",
    models: Annotated[str, question("models")] = "",
    networks: Annotated[str, question("networks")] = "",
) -> None:
    """List methods, models, datasets, partitions, trackers, selections or settings.

    The options choose methods by answers to five questions; without any, all are listed.
    """
    from deploy.report import listing
    from deploy.run import user_modules

    if what not in (kinds := [*listing.LISTINGS, "settings"]):
        raise ValueError(f"list {what} is unknown; allowed: {', '.join(kinds)}")
    if word and what != "settings":
        raise ValueError(f"list {what} takes no further word, but {word!r} is given")
    answers = {"public": public, "rounds": rounds, "leaves": leaves}
    answers |= {"models": models, "networks": networks}
    chosen = {key: given for key, given in answers.items() if given}
    if chosen and what != "methods":
        raise ValueError(f"--{next(iter(chosen))} is for list methods, not list {what}")
    user_modules.look_in(Path(), {"method": word})
    if what == "settings":
        settings = listing.search(word)
        out.print(listing.shown_settings(settings))
        answer([setting._asdict() for setting in settings])
    else:
        table = listing.methods_that_fit(chosen) if chosen else listing.LISTINGS[what]()
        out.print(listing.shown(table))
        if table.title:
            plain(table.title)
        answer(table.records())


@app.command(cls=Answering, rich_help_panel=INSPECT)
def verify(folder: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Check the files of a run against their digests, and name a remedy for damaged ones."""
    from deploy.run.verify import conclusion
    from deploy.run.verify import verify as examine

    verdicts = examine(folder)
    for verdict in verdicts:
        plain(str(verdict))
    plain(conclusion(verdicts, folder))
    answer([{**asdict(verdict), "proven": verdict.proven} for verdict in verdicts])
    if any(verdict.state == "damaged" for verdict in verdicts):
        raise typer.Exit(1)


@app.command(rich_help_panel=INSPECT)
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    host: Annotated[str, typer.Option(help="Address or name to listen on.")] = "127.0.0.1",
    port: Annotated[int, tcp_port("Port of the page; 0: a free one.")] = 0,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Further name of this machine in a browser's address; repeatable."),
    ] = None,
    metrics: Annotated[int | None, tcp_port("Also serve metrics for Prometheus here.")] = None,
    ca: machines.Ca = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a run that has not begun.")
    ] = False,
) -> None:
    """Serve the report of a run as a page that updates itself while the run goes on.

    It ends at Ctrl-C, not with the run. With `--ca`, the metrics also have the expiry of the
    certificates in that folder.
    """
    from deploy.report import live
    from deploy.report.serve import Server, serve, until_interrupted

    live.check(folder, wait=wait)
    place, names = folder.resolve(), name or ()
    with until_interrupted(), contextlib.ExitStack() as stack:
        servers = [Server(host, port, {"/": live.LivePage(place).route}, names)]
        plain(f"report: {stack.enter_context(servers[0]).url}/")
        if metrics is not None:
            from deploy.report.metrics import PATH, Metrics  # imports an extra

            route = Metrics(place, ca and ca.expanduser().parent).route
            servers.append(stack.enter_context(Server(host, metrics, {PATH: route}, names)))
            plain(f"metrics: {servers[1].url}{PATH}")
        if not servers[0].local:
            red("warning:", f" whoever reaches {host} can read the results of the run")
        serve(servers)


@app.command(cls=Answering, rich_help_panel=INSPECT)
def status(folder: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Show how far a run is, and which of its clients take part, answer and fail."""
    from deploy.report import status as showing
    from deploy.report.read import read
    from deploy.report.table import terminal

    known = showing.of(read(folder))
    plain(showing.line(known))
    for table in terminal(showing.table(known), out.width):
        out.print(table)
    answer(asdict(known))


@app.command(cls=Answering, rich_help_panel=DEPLOY)
def remove(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    k: Annotated[int, typer.Argument(metavar="K", min=0, help="Number of the client.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let a removed client return.")] = False,
) -> None:
    """Remove a client from a run, from its next round on."""
    from deploy.report.read import read
    from deploy.report.status import roster
    from server_app.storage import removals

    size = roster(read(folder))
    if k >= size:
        raise ValueError(f"client {k} is unknown: the run in {folder} has clients 0 to {size - 1}")
    removed = removals.read(folder)
    if undo and k not in removed:
        raise ValueError(f"client {k} is not removed from the run in {folder}")
    removals.write(folder, removed - {k} if undo else removed | {k})
    plain(f"client {k} {'may return' if undo else 'leaves'} before the next round")
    answer({"client": k, "removed": sorted(removals.read(folder))})


@app.command(cls=Answering, rich_help_panel=INSPECT)
def doctor() -> None:
    """Check the installation: versions, devices, data sets and runtimes."""
    from deploy.run.doctor import examine, show

    findings = examine()
    show(findings, out)
    answer(asdict(findings))
    if not any(check.good for check in findings.runtimes if check.name != "loopback"):
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the console script; an expected error is one line with a non-zero exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's log lines would mix with the output
    try:
        status = app(prog_name="fedmosaic", standalone_mode=False)
    except click.ClickException as error:
        _print_usage_error(error)
        sys.exit(error.exit_code)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not errors.place(error):  # regular exit of typer
            raise
        red("error:", f" {errors.report(error, errors.HOME)}")
        sys.exit(1)
    sys.exit(status or 0)


def _print_usage_error(error: click.ClickException) -> None:
    """Print an error in the command line as one line, or the help if there is no command."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.ctx.get_help())
        return
    remedy = f"; see {context.command_path} --help" if context else ""
    red("error:", f" {error.format_message().rstrip('.')}{remedy}")


if __name__ == "__main__":
    main()
