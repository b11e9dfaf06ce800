"""Command line ``fedmosaic``.

A command imports its dependencies when it is called, so that help and error messages are fast.
Commands that need no torch do not import it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperGroup

from common import errors
from deploy.console import (
    INTERRUPTED,
    Experiment,
    Folders,
    InterruptHandler,
    JsonCommand,
    RayAddress,
    Settings,
    WarmStart,
    Workers,
    answer,
    file_option,
    interruptible,
    out,
    out_option,
    plain,
    print_table,
    red,
    resolved,
)
from deploy.leaderboard.command import leaderboard
from deploy.machines import commands as machines
from deploy.report import chooser
from deploy.study import commands as study

RUN, COMPARE, DEPLOY, INSPECT = "Run", "Compare", "Deploy", "Inspect"  #: headings of the help
PAPERS = "belongs to the papers' tables: in a checkout, python -m tests.papers"
MOVED = {"claims": "claims", "noise": "figures noise", "information": "figures information"}
"""Commands that a checkout has instead of the package."""


class Commands(TyperGroup):
    """Group of commands; an unknown name, also of a command that has moved, is one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            if name in MOVED:
                raise ValueError(f"{ctx.command_path} {name} {PAPERS} {MOVED[name]}")
            known = ", ".join(self.list_commands(ctx))
            raise ValueError(f"{ctx.command_path} has no command {name!r}; allowed: {known}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


def question(key: str) -> Any:
    """Return the option for the answer to one of the chooser's questions."""
    text, answers = chooser.QUESTIONS[key]
    said = "; ".join(f"{answer}: {meaning}" for answer, meaning in answers.items())
    return typer.Option(click_type=click.Choice([*answers]), help=f"With methods: {text} {said}.")


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


@app.command(cls=JsonCommand, rich_help_panel=RUN)
def run(
    experiment: Experiment = None,
    settings: Settings = None,
    runtime: Annotated[str, typer.Option(help="Where clients run: loopback, ray or grpc.")] = "",
    workers: Workers = None,
    warm: WarmStart = None,
    ray_address: RayAddress = "",
    to: Annotated[Path | None, out_option("Folder of the results.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    from_round: Annotated[
        int, typer.Option("--from-round", min=-1, help="With --resume: go back to a kept round.")
    ] = -1,
) -> None:
    """Run an experiment; default: FedORION on digits with six clients."""
    from deploy import settings as reading
    from deploy.run import preload

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
        given = {"from-round": from_round} if from_round >= 0 else {}
        flat, folder = preflight.resumed(resume, runtime, settings or [], given)
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


@app.command(cls=JsonCommand, rich_help_panel=RUN)
def data(experiment: Experiment = None, settings: Settings = None) -> None:
    """Show what an experiment reads, without training: classes, columns, images, ignored files."""
    from deploy import settings as reading

    flat = reading.read(experiment or reading.DEFAULT, settings or []).resolve()
    from deploy.run import data as reader

    answer(reader.read(flat, out).as_dict())


for compare in (*study.COMMANDS, leaderboard):
    app.command(cls=JsonCommand, rich_help_panel=COMPARE)(compare)


@app.command(cls=JsonCommand, rich_help_panel=COMPARE)
def report(
    folders: Folders,
    to: Annotated[
        Path | None, file_option("--out", "The page; default: report.html in the folder.")
    ] = None,
) -> None:
    """Write one page about a run, or a comparison of several runs."""
    from deploy.report.read import check_journals

    check_journals(folders)
    from deploy.run import progress  # imports torch

    page = to or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    progress.report(folders, page, out)
    answer({"report": page.resolve()})


figures = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode="rich")
for figure in study.FIGURES:
    figures.command(cls=JsonCommand)(figure)
app.add_typer(
    figures,
    name="study",
    rich_help_panel=COMPARE,
    help="Draw figures of finished runs, analyse their networks, and convert traces.",
)
for command in machines.COMMANDS:
    app.command(cls=JsonCommand, rich_help_panel=DEPLOY)(command)
app.command(rich_help_panel=DEPLOY)(machines.node)  # becomes another program, so it has no result


@app.command("list", cls=JsonCommand, rich_help_panel=INSPECT)
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, models, datasets, partitions, trackers, selections, profiles or "
            "settings."
        ),
    ],
    word: Annotated[
        str,
        typer.Argument(
            help="With settings: a method, for the settings that it reads; or a word to search for "
            "in keys and descriptions."
        ),
    ] = "",
    public: Annotated[str | None, question("public")] = None,
    rounds: Annotated[str | None, question("rounds")] = None,
    leaves: Annotated[str | None, question("leaves")] = None,
    models: Annotated[str | None, question("models")] = None,
    networks: Annotated[str | None, question("networks")] = None,
) -> None:
    """List methods, models, datasets, partitions, trackers, selections, profiles or settings.

    The options choose methods by answers to five questions; without any, all are listed.
    """
    from deploy import user_modules
    from deploy.report import listing

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


@app.command(cls=JsonCommand, rich_help_panel=INSPECT)
def profile(
    fleet: Annotated[
        str,
        typer.Option(help="Architectures to train, or a preset of fleets; default: the setting's."),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "here",
    settings: Settings = None,
) -> None:
    """Measure this machine and print a section [profile.NAME] for the virtual clock.

    Of the settings, fleet, threads and device count.
    """
    flat = resolved(None, settings) | ({"fleet": fleet} if fleet else {})
    from common.parse import parse
    from deploy import user_modules
    from deploy.run.profile import measure

    user_modules.look_in(Path(), {"fleet": flat["fleet"]})
    config = parse(flat)
    found = measure(name, config.fleet, config.run.threads, config.run.device)
    plain(found.toml())
    answer(asdict(found))


@app.command(cls=JsonCommand, rich_help_panel=INSPECT)
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


@app.command(cls=JsonCommand, rich_help_panel=INSPECT)
def status(folder: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Show how far a run is, and which of its clients take part, answer and fail."""
    from deploy.report import status as showing
    from deploy.report.read import read

    known = showing.of(read(folder))
    plain(showing.line(known))
    print_table(showing.table(known))
    answer(asdict(known))


@app.command(cls=JsonCommand, rich_help_panel=INSPECT)
def clock(folder: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Compare the clients' times on a run's virtual clock with those that its server measured."""
    from deploy.study import clock as clocks

    times = clocks.compare(folder)
    print_table(clocks.table(times))
    for line in clocks.remarks(times):
        plain(line)
    answer(asdict(times))


@app.command(cls=JsonCommand, rich_help_panel=DEPLOY)
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


@app.command(cls=JsonCommand, rich_help_panel=INSPECT)
def doctor() -> None:
    """Check the installation: versions, devices, data sets and runtimes."""
    from deploy.run.doctor import examine, show

    findings = examine()
    show(findings, out)
    answer(asdict(findings))
    if not any(check.good for check in findings.runtimes if check.name != "loopback"):
        raise typer.Exit(1)


def main(commands: typer.Typer = app, name: str = "fedmosaic") -> NoReturn:
    """Run the console script; an expected error is one line with a non-zero exit status.

    SIGTERM ends a command as Ctrl-C does. Characters that the output's encoding lacks become ``?``.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if threading.current_thread() is threading.main_thread():
        InterruptHandler()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's log lines would mix with the output
    try:
        status = commands(prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        red("interrupted", "")
        sys.exit(INTERRUPTED)
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
