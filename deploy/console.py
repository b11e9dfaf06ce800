"""What the commands share: where they print, and the options that several of them take."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import Parameter
from rich.console import Console
from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from common.settings.section import Value

out, err = Console(), Console(stderr=True)
INTERRUPTED = 130  #: exit status

Experiment = Annotated[
    Path | None, typer.Argument(help="A TOML file, or the name of one of ours; default: ours.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]


def _possible(workers: int | None) -> int | None:
    if workers is not None:
        from deploy.run.settings import check_workers  # help does without

        check_workers(workers)
    return workers


Workers = Annotated[
    int | None,
    typer.Option(
        callback=_possible, help="Processes that serve clients on loopback; 0: none of their own."
    ),
]
WarmStart = Annotated[
    bool | None,
    typer.Option(
        "--warm-start/--cold-start",
        help="Fork client processes from one that has torch imported (gRPC; the default on Linux).",
        show_default=False,
    ),
]


def place(what: str) -> Any:
    """Return the option ``--out``."""
    return typer.Option("--out", help=what)


RayAddress = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="A Ray cluster that serves the clients (--runtime ray); this machine is one of it.",
        show_default=False,
    ),
]


def _aside(context: object, option: object, wanted: bool) -> None:
    out.stderr = wanted


class Answering(TyperCommand):
    """A command with the option ``--json``, which decides what ``answer`` does."""

    def __init__(self, *names: Any, params: list[Parameter], **options: Any) -> None:
        json_too = TyperOption(
            param_decls=["--json"],
            is_flag=True,
            expose_value=False,
            callback=_aside,
            help="Print the result as JSON, and everything else to standard error.",
        )
        super().__init__(*names, params=[*params, json_too], **options)


def answer(result: object) -> None:
    """Print ``result`` as JSON on standard output with ``--json``; what is not finite is null."""
    if out.stderr:
        print(json.dumps(_finite(result), indent=1, ensure_ascii=False, default=str))


def finish(files: Iterable[Path], **result: object) -> None:
    """Print the files that were written, and the answer with them."""
    written = list(files)
    for path in written:
        plain(str(path))
    answer({**result, "files": written})


def resolved(experiment: Path | None, settings: list[str] | None) -> dict[str, Value]:
    """Return the run config of an experiment file, by default ours, with overrides."""
    from deploy.run.settings import DEFAULT, resolve  # help does without

    return resolve(experiment or DEFAULT, settings or [])


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def plain(line: str) -> None:
    """Print a line as it is, without colours and unwrapped."""
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def red(word: str, line: str) -> None:
    """Print a red word and a line behind it to standard error."""
    err.print(f"[red]{word}[/]", end="")
    err.print(line, markup=False, highlight=False, soft_wrap=True)
