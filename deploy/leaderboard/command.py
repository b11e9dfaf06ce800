"""``fedmosaic leaderboard``."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from deploy.leaderboard.ranking import Section


def leaderboard(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="With --add: folders of a method's runs.")
    ] = None,
    which: Annotated[
        str, typer.Option("--board", help="fashion, cifar or smartwatch.")
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
    picture: Annotated[Path | None, picture_option("--picture", "Draw the ranks here.")] = None,
) -> None:
    """Compare all methods under one protocol: equal budgets, several seeds and partitions.

    Complete rows have ranks among themselves. Missing cells and rows are named.
    """
    from deploy.leaderboard import board as boards
    from deploy.leaderboard import page as pages
    from deploy.leaderboard.protocol import read
    from deploy.leaderboard.ranking import sections
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
    for line in pages.protocol_lines(board.protocol):
        plain(line)
    if estimate:
        answer(_estimate(board))
        return
    if added is not None:
        plain(f"added: {added.name}, {added.fleet}")
    if play:
        words = [word for one in row or [] for word in ("--row", one)]
        words += ["--jobs", str(jobs)] if jobs else []
        _play_board(board, row or [], jobs, shlex.join(words))
    found = list(sections(board))
    _show_board(found)
    written = [*boards.write(board, folder), pages.write_text(board, found)]
    if html is not None:
        pages.write_html(board, found, html)
        written.append(html)
    if picture is not None:
        if not pages.picture(found, picture):
            raise ValueError(f"--picture {picture}: no row of the leaderboard is complete")
        written.append(picture)
    finish(written, rows=pages.as_json(found))


def _estimate(board: Board) -> dict[str, Any]:
    """Time a short run of each row, and print the cost of the whole board."""
    from deploy.leaderboard import board as boards

    seconds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as temporary:
        for row, spent in boards.estimate(board, Path(temporary)):
            seconds[row.name] = spent
            plain(f"{row.name}: {spent if isinstance(spent, str) else f'{spent:.0f} s a run'}")
    each = boards.runs_of_a_row(board.protocol)
    timed = [s for s in seconds.values() if not isinstance(s, str)]
    hours = each * sum(timed) / 3600
    plain(f"{len(timed)} rows of {each} runs: about {hours:.1f} core-hours")
    return {"seconds_a_run": seconds, "runs_a_row": each, "core_hours": hours}


def _play_board(board: Board, rows: list[str], jobs: int, words: str) -> None:
    from deploy.leaderboard.board import play
    from deploy.run.launch import default_workers

    again = (
        f"fedmosaic leaderboard --run --board {board.protocol.name} "
        f"--out {shlex.quote(str(board.folder))} {words}"
    ).strip()
    with progress_bar(again, "leaderboard") as (more, ended):
        play(board, rows, jobs or default_workers(), more, ended)


def _show_board(found: Sequence[Section]) -> None:
    from deploy.leaderboard import page as pages

    for section, one_shot in pages.tables(found):
        print_table(pages.table(section, one_shot))
    for line in pages.incomplete(found):
        plain(line)
