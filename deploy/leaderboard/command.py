"""``fedmosaic leaderboard``."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.console import (
    answer,
    checked_folder,
    file_option,
    finish,
    out_option,
    picture_option,
    plain,
    print_table,
    progress_bar,
)

if TYPE_CHECKING:
    from deploy.leaderboard.board import Board


def leaderboard(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="With --add: folders of a method's runs.")
    ] = None,
    which: Annotated[
        str, typer.Option("--board", help="fashion, fashion3, cifar or smartwatch.")
    ] = "fashion",
    to: Annotated[
        Path | None,
        out_option(
            "Folder of the record, runs/leaderboard_BOARD without it; at first the bundled record "
            "is copied there."
        ),
    ] = None,
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
    sends: Annotated[str, typer.Option(help="With --add: what leaves a client.")] = "",
    html: Annotated[Path | None, file_option("--html", "Write the page here.")] = None,
    picture: Annotated[
        Path | None, picture_option("--picture", "Draw the ten best rows here.")
    ] = None,
) -> None:
    """Compare all methods under one protocol: equal budgets, several seeds and partitions.

    Complete rows have possible positions among themselves. Missing cells and rows are named.
    """
    from deploy.leaderboard import board as boards
    from deploy.leaderboard.page import protocol_lines
    from deploy.leaderboard.protocol import read
    from deploy.leaderboard.user_rows import add as add_row

    given = {"": runs and runs[0], "--name ": name, "--sends ": sends}
    if not add and (lone := next((f"{k}{v}" for k, v in given.items() if v), "")):
        raise ValueError(f"{lone} is given without --add")
    protocol = read(which)
    folder = checked_folder(to or Path("runs") / protocol.label, "--out")
    board = boards.Board(folder, protocol)
    board.check_rows(row or [])
    added = add_row(board, runs or [], name, sends) if add else None
    board = boards.open_record(folder, protocol)
    for line in protocol_lines(protocol):
        plain(line)
    if estimate:
        _estimate(board)
        return
    if added is not None:
        plain(f"added: {added.name}, {added.fleet}")
    if play:
        _play(board, row or [], jobs)
    _show(board, html, picture)


def _estimate(board: Board) -> None:
    """Time a short run of each row, and print the cost of the whole board."""
    from deploy.leaderboard import board as boards

    seconds: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as temporary:
        for row, spent in boards.estimate(board, Path(temporary)):
            seconds[row.name] = spent
            plain(f"{row.name}: {spent if isinstance(spent, str) else f'{spent:.0f} s a run'}")
    each = boards.runs_of_a_row(board.protocol)
    timed = [s for s in seconds.values() if not isinstance(s, str)]
    hours = each * sum(timed) / 3600
    runs = f"at least {each}" if board.protocol.edge else str(each)
    plain(f"{len(timed)} rows of {runs} runs: about {hours:.1f} core-hours")
    answer({"seconds_a_run": seconds, "runs_a_row": each, "core_hours": hours})


def _play(board: Board, rows: list[str], jobs: int) -> None:
    """Run the missing cells of these rows (none means all) with a progress bar."""
    from deploy.leaderboard.board import play
    from deploy.run.launch import default_workers
    from deploy.study.paper_table import options

    words = ["--board", board.protocol.name, "--out", str(board.folder), *options(rows, [], [])]
    words += ["--jobs", str(jobs)] if jobs else []
    again = shlex.join(["fedmosaic", "leaderboard", "--run", *words])
    with progress_bar(again, "leaderboard") as (more, ended):
        play(board, rows, jobs or default_workers(), more, ended)


def _show(board: Board, html: Path | None, picture: Path | None) -> None:
    """Print the board, and write its tables, its text, and the page and the picture if wanted."""
    from deploy.leaderboard import board as boards
    from deploy.leaderboard import page as pages
    from deploy.leaderboard.ranking import sections

    found = list(sections(board))
    for section, one_shot in pages.tables(found):
        print_table(pages.table(section, one_shot))
    if (named := pages.pairs(found)).rows:
        print_table(named)
        plain(pages.pairs_lead(found))
    for line in pages.incomplete(found):
        plain(line)
    written = [*boards.write(board, board.folder), *pages.write_text(board, found)]
    if html is not None:
        written += pages.write_html(board, found, html)
    if picture is not None:
        if not pages.picture(found, picture):
            raise ValueError(f"--picture {picture}: no row of the leaderboard is complete")
        written.append(picture)
    finish(written, rows=pages.as_json(found))
