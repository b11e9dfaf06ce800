"""Run the cells of a table that are not recorded yet: the one way for tables, sweeps and boards.

A cell runs in ``cells/<fingerprint>`` of the folder, and is recorded as soon as it has ended
(``records.py``). A table runs its cells one after another in this process (``run_here``). A sweep
and a board run several at a time (``Runner``). They keep the reason why a cell did not finish in
``unfinished.json``, so that the cell is not repeated.
"""

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import final

from rich.console import Console

from common.files import parse_json, write_atomically
from deploy.run import preload
from deploy.study import records
from deploy.study.paper_table import CellRun, check, recorded
from deploy.study.records import Flat
from server_app.stopped import REMEDY

UNFINISHED = "unfinished.json"
LEARNT = "learnt"  #: folder of local training that several cells share

OnBatch = Callable[[int], None]
"""Function that gets the number of cells that follow."""
OnCell = Callable[[CellRun, str], None]
"""Function that gets a cell at its end, and the reason why it did not finish; empty if it did."""


@final
class Unfinished(dict[str, str]):
    """Reasons why cells did not finish, by fingerprint, in a file, so that none is repeated."""

    def __init__(self, folder: Path) -> None:
        """Read the file in ``folder``. Raises ``ValueError``, one line, if it is damaged."""
        self._path = folder / UNFINISHED
        try:
            super().__init__(parse_json(self._path.read_bytes()) if self._path.exists() else {})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged: {error}; delete it to try again") from error

    def join(self, others: Mapping[str, str]) -> None:
        """Add further cells to the file, by their fingerprints."""
        if others.keys() - self.keys():
            self.update({**others, **self})
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(self, indent=1).encode())


def missing(some: Iterable[CellRun], folder: Path) -> list[CellRun]:
    """Return those of ``some`` cells that are not recorded."""
    cells = list(some)
    known = recorded(cells, folder)
    return [cell for cell in cells if cell.fingerprint not in known]


def _place(cell: CellRun, folder: Path) -> Path:
    return folder / records.RUNS / cell.fingerprint


def _record(cell: CellRun, folder: Path) -> bool:
    """Record a cell that has ended; return whether it finished.

    Its client states and checkpoint are deleted.
    """
    place = _place(cell, folder)
    for name in ("state", "uploads"):
        shutil.rmtree(place / name, ignore_errors=True)
    (place / "checkpoint.safetensors").unlink(missing_ok=True)
    return not missing([cell], folder)


def run_here(
    todo: Sequence[CellRun],
    folder: Path,
    launch: Callable[[Flat, Path], None],
    on_cell: Callable[[int, int, CellRun, bool], None],
) -> None:
    """Run the cells that are not recorded yet, by this process or another, one after another.

    ``launch(flat, place)`` runs one; ``on_cell(i, of, cell, recorded)`` is called before each.
    """
    for i, cell in enumerate(todo, start=1):
        is_known = not missing([cell], folder)
        on_cell(i, len(todo), cell, is_known)
        if not is_known:
            launch(cell.flat, _place(cell, folder))
            _record(cell, folder)


@final
@dataclass
class Running:
    """A cell that runs in a process; ``connection`` receives the reason if it fails."""

    cell: CellRun
    place: Path
    process: BaseProcess
    connection: Connection
    stopped: str = ""

    def stop(self, why: str = "") -> None:
        """End the process, and keep the reason; a later run resumes from the checkpoint."""
        self.stopped = why
        self.process.terminate()


@final
class Runner:
    """Processes that run the missing cells of one folder, one cell each, ``jobs`` at a time."""

    def __init__(
        self,
        folder: Path,
        jobs: int,
        on_batch: OnBatch = lambda _: None,
        on_cell: OnCell = lambda *_: None,
    ) -> None:
        """Raise ``ValueError``, one line, for a number of jobs or a file that is not allowed."""
        if jobs < 1:
            raise ValueError(f"jobs = {jobs} is not allowed; it should be at least 1")
        self._folder, self._jobs, self._unfinished = folder, jobs, Unfinished(folder)
        self._on_batch, self._on_cell = on_batch, on_cell

    def left(self, some: Iterable[CellRun]) -> list[CellRun]:
        """Return each of ``some`` cells once that is neither recorded nor unfinished."""
        runs = {cell.fingerprint: cell for cell in some}
        return missing([runs[one] for one in runs if one not in self._unfinished], self._folder)

    def run(
        self,
        some: Iterable[CellRun],
        watch: Callable[[Sequence[Running]], None] = lambda _: None,
    ) -> None:
        """Run what is left of ``some`` cells.

        ``watch`` gets the cells that run, about once a second, and may stop some of them. Raises
        ``ValueError``, one line, for settings that cannot run, before any cell does.
        """
        left, running = self.left(some), list[Running]()
        check(left)
        self._on_batch(len(left))
        try:
            while left or running:
                while left and len(running) < self._jobs:
                    running.append(self._start(left.pop(0)))
                ended = wait([one.process.sentinel for one in running], timeout=1.0)
                for one in [one for one in running if one.process.sentinel in ended]:
                    running.remove(one)
                    self._finish(one)
                watch(running)
        finally:
            for one in running:
                one.stop()
                one.process.join()

    def _start(self, cell: CellRun) -> Running:
        preload.begin()
        context = multiprocessing.get_context("forkserver")
        connection, end = context.Pipe(duplex=False)
        place = _place(cell, self._folder)
        process = context.Process(target=_play, args=(cell.flat, place, self._folder / LEARNT, end))
        with preload.without_main():
            process.start()
        end.close()
        return Running(cell, place, process, connection)

    def _finish(self, one: Running) -> None:
        """Record a cell whose process has ended, or keep the reason why it did not finish."""
        one.process.join()
        reason, why = "", ""
        with suppress(EOFError):
            reason = one.connection.recv()
        if not _record(one.cell, self._folder):
            why = one.stopped or reason or f"its process ended with {one.process.exitcode}"
            self._unfinished.join({one.cell.fingerprint: why})
        self._on_cell(one.cell, why)


def _play(flat: Flat, place: Path, learnt: Path, end: Connection) -> None:
    """Run one cell in this process, and send the reason if it fails."""
    from deploy.run import launch

    preload.settle()
    try:
        launch.cell(flat, place, workers=0, console=Console(quiet=True), learnt=learnt)
    except Exception as error:  # one configuration that cannot train ends no sweep
        line = REMEDY.sub("", str(error).partition("\n")[0])
        end.send(line.partition(launch.TRACEBACKS)[0])  # the cell's files are deleted
