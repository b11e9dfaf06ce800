"""Output, options and endings that the commands of ``fedmosaic`` share."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import click
import typer
from click import Parameter
from rich.console import Console
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.utils import get_params_from_function

from deploy import log_lines

if TYPE_CHECKING:
    from common.settings.section import Value
    from deploy.report.table import Table

out, err = Console(), Console(stderr=True)
INTERRUPTED = 130  #: exit status
PICTURES = (".pdf", ".png", ".svg")  #: suffixes of pictures

# Types of parameters that several commands have, for typer: each has its option and its help text.

Experiment = Annotated[
    Path | None,
    typer.Argument(help="A TOML file, or the name of a bundled experiment; default: default."),
]
Folders = Annotated[list[Path], typer.Argument(help="Folders of runs.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Override a setting; repeatable."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1024,
        help="Processes that serve clients on loopback; 0: this process serves them.",
    ),
]
WarmStart = Annotated[
    bool | None,
    typer.Option(
        "--warm-start/--cold-start",
        help="Fork client processes from one that has imported torch (gRPC; default on Linux).",
        show_default=False,
    ),
]


def out_option(text: str) -> Any:
    """Return the option ``--out`` with this help text."""
    return typer.Option("--out", help=text)


def checked_folder(path: Path, option: str) -> Path:
    """Return ``path``, absolute; raise ``ValueError`` if it cannot be a folder."""
    absolute = path.expanduser().resolve()
    existing = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
    if not existing.is_dir():
        raise ValueError(f"{option} {path} is not allowed; {existing} is not a folder")
    return absolute


def file_option(name: str, text: str, suffixes: Sequence[str] = ()) -> Any:
    """Return an option with the path of a file to write, which is checked before the work.

    ``suffixes``: those of pictures; empty: any suffix is allowed.
    """

    def checked(path: Path | None) -> Path | None:
        if path is None:
            return None
        if suffixes and path.suffix.lower() not in suffixes:
            raise ValueError(
                f"{name} {path}: a picture should end in {', '.join(suffixes[:-1])} or "
                f"{suffixes[-1]}"
            )
        if path.is_dir():
            raise ValueError(f"{name} {path} is not allowed; it is a folder")
        checked_folder(path.parent, name)
        return path

    return typer.Option(name, callback=checked, help=text)


def picture_option(name: str, text: str) -> Any:
    """Return an option with the path of a picture."""
    return file_option(name, text, PICTURES)


LogFormat = Annotated[
    str, typer.Option(click_type=click.Choice(log_lines.FORMATS), help="Format of log lines.")
]
LogLevel = Annotated[
    str, typer.Option(click_type=click.Choice(log_lines.LEVELS), help="Least level of log lines.")
]
RayAddress = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Existing Ray cluster that serves the clients (--runtime ray), with this machine.",
        show_default=False,
    ),
]


def _print_to_stderr(context: object, option: object, as_json: bool) -> None:
    # typer's callback of --json: later, ``out.stderr`` also tells whether the option was given
    out.stderr = as_json


class JsonCommand(TyperCommand):
    """Command with the option ``--json``, which makes ``answer`` print.

    With it, standard output has nothing but the JSON, so that a program can read it.
    """

    def __init__(self, *names: Any, params: list[Parameter], **options: Any) -> None:
        json_option = TyperOption(
            param_decls=["--json"],
            is_flag=True,
            expose_value=False,
            callback=_print_to_stderr,
            help="Print the result as JSON, and everything else to standard error.",
        )
        declared = get_params_from_function(unwrap(options["callback"]))
        for param in params:  # click 8.5 and later remove the help that typer 0.20 sets
            if isinstance(param, TyperArgument) and param.name and not param.help:
                param.help = declared[param.name].default.help
        super().__init__(*names, params=[*params, json_option], **options)


def print_table(table: Table, *, ruled: bool = True) -> None:
    """Print a table in blocks that fit the terminal; ``ruled``: with a line below the header."""
    from deploy.report.table import terminal

    out.print(*terminal(table, out.width, ruled=ruled), sep="\n")


def answer(result: object) -> None:
    """With ``--json``, print ``result`` as JSON on standard output; non-finite numbers are null."""
    if out.stderr:
        print(json.dumps(_finite(result), indent=1, ensure_ascii=False, default=str))


def finish(files: Iterable[Path], **result: object) -> None:
    """Print the paths of the written files, then the result with these paths as JSON."""
    written = list(files)
    for path in written:
        plain(str(path))
    answer({**result, "files": written})


def log_as(form: str, level: str) -> None:
    """Print log lines in this format, from this level on. The result of ``--json`` is unchanged."""
    log_lines.convert_output(form, level, errors_only=out.stderr)


@final
class InterruptHandler:
    """Signal handler that ends a command at Ctrl-C and SIGTERM by ``KeyboardInterrupt``.

    Python drops an exception that is raised in a finalizer, so that a command would go on: such an
    interrupt is raised again. One that is raised while a lock is taken may leave it locked, and a
    thread that waits for it never ends: after ``PATIENCE`` seconds the process ends all the same.
    One timer (SIGALRM) serves both purposes; systems without it react to signals only.
    """

    PATIENCE = 60.0  #: seconds from the first signal until the end
    REPEAT_AFTER = 0.05  #: seconds until a dropped interrupt is raised again

    def __init__(self) -> None:
        """Set what the signals do; one that this process ignores stays ignored."""
        self._deadline = math.inf
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        if hasattr(signal, "setitimer"):  # Unix
            signal.signal(signal.SIGALRM, self._interrupt)
            sys.unraisablehook = self._on_dropped

    def _interrupt(self, number: int, _: object) -> None:
        now = time.monotonic()
        if now >= self._deadline:  # a deadlock: no exception would end the process
            os._exit(INTERRUPTED)
        self._deadline = min(self._deadline, now + self.PATIENCE)
        self._set_alarm(self._deadline - now)
        raise KeyboardInterrupt

    def _on_dropped(self, lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            self._set_alarm(self.REPEAT_AFTER)
        else:
            sys.__unraisablehook__(lost)

    def _set_alarm(self, seconds: float) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)


@contextmanager
def interruptible(command: str) -> Iterator[None]:
    """End the block at Ctrl-C with one line that names the ``command`` to continue with."""
    try:
        yield
    except KeyboardInterrupt:
        red("interrupted", f"; go on with: {command}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def progress_bar(again: str, word: str) -> Iterator[tuple[Any, Any]]:
    """Show a bar of cells, and yield the functions ``on_batch`` and ``on_cell`` that advance it.

    ``on_batch`` adds cells that are about to run to the total, because a study may choose cells by
    earlier results. ``on_cell`` reports one as done, with the reason if it was given up.
    ``word``: the text before the bar. At Ctrl-C one line names the command ``again``.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(TextColumn(word), BarColumn(), MofNCompleteColumn(), console=out)
    with interruptible(again), bar:
        task = bar.add_task("", total=0)

        def on_batch(cells: int) -> None:
            bar.update(task, total=(bar.tasks[0].total or 0) + cells)

        def on_cell(cell: Any, why: str) -> None:
            bar.advance(task)
            where = f"{cell.row}, {cell.column}, seed {cell.seed}"
            plain(f"{where}{f': {why}' if why else ''}")

        yield on_batch, on_cell


def resolved(experiment: Path | None, settings: list[str] | None) -> dict[str, Value]:
    """Return the run config of an experiment file (None: ``default``) with overrides."""
    from deploy.settings import DEFAULT, resolve  # --help does not need it

    return resolve(experiment or DEFAULT, settings or [])


def _finite(value: object) -> object:
    """Return ``value`` with None for each number that JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def plain(line: str) -> None:
    """Print a line without colours and without wrapping."""
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def red(word: str, line: str) -> None:
    """Print a red word, followed by a line, to standard error."""
    err.print(f"[red]{word}[/]", end="")
    err.print(line, markup=False, highlight=False, soft_wrap=True)
