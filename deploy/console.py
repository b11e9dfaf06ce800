"""What the commands share: where they print, and the options that several of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out, err = Console(), Console(stderr=True)
INTERRUPTED = 130  #: exit status

Experiment = Annotated[
    Path | None, typer.Argument(help="A TOML file, or the name of one of ours; default: ours.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that serve clients on loopback; 0: none of their own."),
]
WarmStart = Annotated[
    bool, typer.Option("--warm-start", help="Fork client processes from a warm one (Linux, gRPC).")
]


def plain(line: str) -> None:
    """Print a line as it is, without colours and unwrapped."""
    out.print(line, markup=False, highlight=False, soft_wrap=True)


def red(word: str, line: str) -> None:
    """Print a red word and a line behind it to standard error."""
    err.print(f"[red]{word}[/]", end="")
    err.print(line, markup=False, highlight=False, soft_wrap=True)
