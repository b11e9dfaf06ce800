"""The board: the protocol with what is recorded, and the runs of what is missing.

It has two tables (``deploy/study/paper_table.py``) in one folder. In the *tuning* table a row is
one configuration of a method, scored on validation samples. The best configuration of each method
is written to ``chosen.json``. In the *board* a row is a method with this configuration, and a
column is one partition. Both tables share the record of all tables, ``cells.jsonl``, so records of
several machines can be joined.
"""

import itertools
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from common.errors import first_line, invalid
from common.files import parse_json, write_all
from common.measures import ACCURACY
from deploy import user_modules
from deploy.leaderboard.protocol import (
    COSTS,
    FIRST,
    PROTOTYPE,
    RATE,
    TRIES,
    Place,
    Protocol,
    Row,
    check_row,
    read,
)
from deploy.settings import EXPERIMENTS
from deploy.study import paper_table as tables
from deploy.study import records
from deploy.study.paper_table import CellRun, Line, TableFile
from deploy.study.records import Flat, Recorded
from deploy.study.runner import OnBatch, OnCell, Runner, Unfinished
from deploy.study.sweep import COLUMN
from deploy.study.sweep import name as name_of

CHOSEN, ADDED = "chosen.json", "added.json"
MEASURES = (
    *(tables.MEASURE, "personal.worst", "flops.total", "memory.largest", "bytes.up"),
    *(PROTOTYPE, "fairness.prototype.wlp"),
)
"""Paths of a run's summary that a board reads; its bundled record has these alone."""
CURVES = (PROTOTYPE,)
"""Curves that a board reads beside those that every record keeps."""

T = TypeVar("T")


@final
class Board:
    """The protocol with what a folder has recorded."""

    def __init__(self, folder: Path, protocol: Protocol | None = None) -> None:
        """Raise ``ValueError``, one line, for a damaged file in ``folder``."""
        self.folder, self.protocol = folder, protocol or read()
        self.hopeless = set[str]()
        """Rows none of whose configurations finishes."""
        self.given_up = dict[str, list[Flat]]()
        """Configurations of rows that were better in the tuning and did not finish on the board."""
        self.chosen: dict[str, Flat] = self._load(CHOSEN, "chosen", dict[str, Flat])
        added = self._load(ADDED, "rows", list[Row])
        for row in added:
            check_row(self.protocol, row, folder / ADDED)
            user_modules.look_in(folder / user_modules.COPIES, row.set)
        rows = [(row, False) for row in self.protocol.row if not row.omitted]
        rows += [(row, True) for row in added]
        self.places = [Place(row, fleet, user) for row, user in rows for fleet in row.fleets]

    def _load(self, name: str, key: str, kind: type[T]) -> T:
        """Return what a file in the folder has under ``key``; an empty one if there is no file.

        Raises ``ValueError`` for a damaged file, and for one of another board or version.
        """
        path, wanted = self.folder / name, (self.protocol.name, self.protocol.version)
        if not path.exists():
            return kind()
        try:
            content: dict[str, Any] = parse_json(path.read_bytes())
            # without a name it is of the time when there was one board
            saved = content.get("board", FIRST), content["version"]
            if saved == wanted:
                return TypeAdapter(kind).validate_python(content[key])
        except KeyError as error:
            raise ValueError(f"{path} is damaged: it has no {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            why = invalid(error) if isinstance(error, ValidationError) else error
            raise ValueError(f"{path} is damaged: {why}") from error
        theirs, ours = (first_line(f"board {one}, version {of}") for one, of in (saved, wanted))
        raise ValueError(f"{path} is of {theirs}, and this is {ours}; take another folder")

    def check_rows(self, rows: Iterable[str]) -> None:
        """Raise ``ValueError``, one line, for a name that no row has, or an omitted one."""
        names = [place.name for place in self.places]
        omitted = {row.name: row.omitted for row in self.protocol.row if row.omitted}
        for row in rows:
            if row not in names and row in omitted:
                raise ValueError(f"--row {row} is not on the board: {omitted[row]}")
            if row not in names:
                raise ValueError(
                    f"--row {row} is no row of the leaderboard; its rows are: {'; '.join(names)}"
                )

    def save(self) -> None:
        """Write the chosen configurations and the rows of users."""
        version = {"board": self.protocol.name, "version": self.protocol.version}
        files = {CHOSEN: {**version, "chosen": self.chosen}}
        if added := [place.row.model_dump() for place in self.places if place.added]:
            files[ADDED] = {**version, "rows": added}
        texts = {name: json.dumps(it, indent=1, ensure_ascii=False) for name, it in files.items()}
        write_all(self.folder, {name: f"{text}\n" for name, text in texts.items()})

    def tuning(self) -> TableFile:
        """Return the table whose rows are the configurations of all rows."""
        return self._tuning([(it, one) for it in self.places for one in self._tried(it)])

    def _tuning(self, some: Iterable[tuple[Place, Flat]]) -> TableFile:
        """Return the table of configurations, each of a row."""
        rows = [
            Line(name=f"{it.name}: {name_of(one)}", set={**self._settings(it), **one})
            for it, one in some
        ]
        tuning = self.protocol.tuning
        return TableFile(
            title=f"Configurations, {self.protocol.title}",
            seeds=tuning.seeds,
            base={**self.protocol.base},
            row=rows,
            column=[Line(name=COLUMN, set={**tuning.set})],
        )

    def _tried(self, place: Place) -> list[Flat]:
        """Return the configurations that are tried for a row.

        While the best one has the smallest or largest rate, and the protocol allows more rates,
        half or twice that rate is tried too.
        """
        tried = [] if place.added else self.protocol.configurations(place.row)
        for _ in range(self.protocol.edge if tried else 0):
            if not (best := self._ordered(place, tried)):
                break
            rates, rate = [float(one[RATE]) for one in tried], float(best[0][RATE])
            if min(rates) < rate < max(rates):
                break
            tried.append({**best[0], RATE: 2 * rate if rate == max(rates) else rate / 2})
        return tried

    def _ordered(self, place: Place, tried: Sequence[Flat]) -> list[Flat] | None:
        """Return the configurations all of whose tuning runs finished, the best one first.

        None if a run has neither finished nor ended. Their number is the mean of the seeds.
        """
        cells = list(tables.cells(self._tuning((place, one) for one in tried)))
        known = tables.recorded(cells, self.folder)
        ended = known.keys() | Unfinished(self.folder).keys()
        if any(cell.fingerprint not in ended for cell in cells):
            return None
        scores, each = list[tuple[float, int]](), len(self.protocol.tuning.seeds)
        for i in range(len(tried)):
            runs = [known.get(cell.fingerprint) for cell in cells[each * i : each * (i + 1)]]
            numbers = [run and _score(place, run) for run in runs]
            if None not in numbers:
                scores.append((statistics.fmean(number or 0.0 for number in numbers), -i))
        return [tried[-i] for _, i in sorted(scores, reverse=True)]

    def board(self) -> TableFile:
        """Return the table of the rows that have a configuration."""
        chosen = {place.name: Flat() for place in self.places if place.added} | self.chosen
        return self._table([(it, chosen[it.name]) for it in self.places if it.name in chosen])

    def _table(self, some: Iterable[tuple[Place, Flat]]) -> TableFile:
        """Return the table of rows with a configuration each."""
        rows = [Line(name=it.name, set={**self._settings(it), **one}) for it, one in some]
        columns = [
            Line(name=name, set=dict[str, object](flat), seeds=self.protocol.own_seeds(flat))
            for name, flat in self.protocol.columns.items()
        ]
        counted = dict[str, object](self.protocol.cost_settings)
        costs = Line(name=COSTS, set=counted, seeds=self.protocol.seeds[:1])
        return TableFile(
            title=f"{self.protocol.title}, version {self.protocol.version}",
            seeds=self.protocol.seeds,
            base={**self.protocol.base},
            row=rows or [Line(name="none")],
            column=[*columns, costs],
        )

    def _settings(self, place: Place) -> Flat:
        return self.protocol.settings(place.row, place.fleet)

    def choose(self) -> list[str]:
        """Choose a configuration for each row whose tuning runs have all ended; return the rows.

        It is the one with the highest score of those that finish, the primary score or the row's
        only one: a configuration is given up for the next best one if a run of the tuning or of the
        board does not finish.
        """
        unfinished, before = Unfinished(self.folder), dict(self.chosen)
        self.hopeless, self.given_up = set[str](), dict[str, list[Flat]]()
        for place in (one for one in self.places if not one.added):
            if (best := self._ordered(place, self._tried(place))) is None:
                continue
            left = [*itertools.dropwhile(partial(self._stops, unfinished, place), best)]
            self.given_up[place.name] = best[: len(best) - len(left)]
            if left:
                self.chosen[place.name] = left[0]
            else:
                self.hopeless.add(place.name)
                self.chosen.pop(place.name, None)
        if self.chosen != before:
            self.save()
        return [name for name, flat in self.chosen.items() if before.get(name) != flat]

    def _stops(self, unfinished: Unfinished, place: Place, one: Flat) -> bool:
        """Return whether a run of the board with this configuration did not finish."""
        cells = tables.cells(self._table([(place, one)])) if unfinished else ()
        return any(cell.fingerprint in unfinished for cell in cells)

    def join(self, other: Path) -> None:
        """Add the cells, choices and ends of runs that another folder has and this one lacks."""
        known, found = records.read(self.folder), records.read(other)
        records.append(self.folder, *(one for name, one in found.items() if name not in known))
        theirs = Board(other, self.protocol)
        self.chosen = {**theirs.chosen, **self.chosen}
        self.save()
        Unfinished(self.folder).join(Unfinished(other))


def _score(place: Place, run: Recorded) -> float | None:
    """Return the number of a tuning run by which its configuration is chosen.

    Raises ``ValueError``, one line, for runs with another measure than the accuracy.
    """
    if (measure := run.primary_measure) is not ACCURACY:
        raise ValueError(f"a board ranks methods by accuracy; its runs have {measure.title}")
    personal = place.row.personal
    return run.last(personal) if personal else run.measured(tables.MEASURE)


def record(protocol: Protocol) -> Path:
    """Return the folder of a board's bundled record, which may have none."""
    return EXPERIMENTS / "results" / protocol.label


def open_record(folder: Path, protocol: Protocol | None = None) -> Board:
    """Return the board in ``folder``, with what the bundled record has and the folder lacks."""
    board = Board(folder, protocol)
    recorded = record(board.protocol)
    if recorded.is_dir() and folder != recorded:
        board.join(recorded)
    board.choose()
    return board


def write(board: Board, folder: Path) -> list[Path]:
    """Write both tables as files for ``fedmosaic table``; the board once it has a row."""
    files = {"tuning.toml": board.tuning()}
    if board.chosen or any(place.added for place in board.places):
        files["board.toml"] = board.board()
    return write_all(folder, {name: tables.as_toml(file) for name, file in files.items()})


def play(
    board: Board,
    rows: Sequence[str],
    jobs: int,
    on_batch: OnBatch = lambda _: None,
    on_cell: OnCell = lambda *_: None,
) -> None:
    """Run what is missing in the board's folder, the fleet with the fewest rows first.

    The tuning of a fleet's rows comes before their cells. ``rows``: names of rows; none means all.
    ``jobs``: runs at a time; ``on_batch`` and ``on_cell``: see ``OnBatch`` and ``OnCell``.

    Raises ``ValueError``, one line, for an unknown row or settings that cannot run.
    """
    board.check_rows(rows)
    runner = Runner(board.folder, jobs, on_batch, on_cell)
    wanted = [place for place in board.places if not rows or place.name in rows]
    fleets = [[p.name for p in wanted if p.fleet == fleet] for fleet in board.protocol.fleet]
    for some, step in itertools.product(sorted(fleets, key=len), (tuned, scored)):
        while left := runner.left(step(board, some)):
            # one seed at a time: a row whose run did not finish then gets its next configuration
            runner.run(cell for cell in left if cell.seed == left[0].seed)
            board.choose()


DIVISOR = 10
"""An estimate runs this part, a tenth, of a run's rounds or of a one-shot run's epochs."""


def estimate(board: Board, folder: Path) -> Iterator[tuple[Place, float | str]]:
    """Yield each row with the CPU seconds of a whole run on one core, or why it cannot run.

    A tenth of the first tuning run is timed, in a subfolder of ``folder`` for each row. Of a
    one-shot method it is a tenth of the clients' epochs, and all that follows them.
    """
    from deploy.run import launch

    firsts = dict[str, CellRun]()
    for cell in tables.cells(board.tuning()):
        firsts.setdefault(cell.row.rpartition(": ")[0], cell)
    for i, place in enumerate(one for one in board.places if not one.added):
        flat = dict(firsts[place.name].flat)
        key = "train.epochs" if place.one_shot else "rounds"
        flat[key] = int(flat[key]) // DIVISOR
        where = folder / str(i)
        started = time.process_time()
        try:
            launch.cell(flat, where, workers=0, console=Console(quiet=True))
        except (ValueError, RuntimeError) as error:
            yield place, str(error).partition("\n")[0]
        else:
            summary = records.completed(where)
            assert summary is not None
            spent = time.process_time() - started
            clients = summary["seconds_by_phase"]["clients"] / summary["seconds"]
            repeated = spent * clients if place.one_shot else spent
            yield place, spent - repeated + DIVISOR * repeated


def runs_of_a_row(protocol: Protocol) -> int:
    """Return the number of runs of a row: its tuning, its cells and the run that counts costs.

    Rates beyond the edge of those tried come on top.
    """
    tuning = TRIES * len(protocol.tuning.seeds)
    return tuning + len(protocol.skew) * len(protocol.runs) + 1


def tuned(board: Board, rows: Sequence[str]) -> list[CellRun]:
    """Return the tuning cells of rows that have no chosen configuration yet."""
    open_ = {p.name for p in board.places if p.name in rows and p.name not in board.chosen}
    return [c for c in tables.cells(board.tuning()) if c.row.rpartition(": ")[0] in open_]


def scored(board: Board, rows: Sequence[str]) -> list[CellRun]:
    """Return the board's cells of rows that have a configuration."""
    return [cell for cell in tables.cells(board.board()) if cell.row in rows]
