"""``fedmosaic leaderboard``: every method under one protocol, with equal budgets for its settings.

The protocol is ``deploy/experiments/leaderboard/protocol.toml``. It has two tables
(``paper_table.py``) in one folder. In the *tuning* table a row is one configuration of a method,
scored on validation samples. The best configuration of each method is written to ``chosen.json``.
In the *board* a row is a method with this configuration, and a column is one partition. Both tables
share the record of all tables, ``cells.jsonl``, so records of several machines can be joined.
"""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from rich.console import Console

from common.errors import invalid
from common.files import write_atomically
from common.settings.parse import defaults, reads
from common.settings.section import Value, kebab
from deploy.run import user_modules
from deploy.run.settings import EXPERIMENTS, checked, flatten, load_run, read_toml
from deploy.study import paper_table as tables
from deploy.study import records
from deploy.study.paper_table import CellRun, Line, TableFile
from deploy.study.records import Flat, Recorded
from deploy.study.sweep import COLUMN, UNFINISHED, Pool, Unfinished
from deploy.study.sweep import name as name_of
from server_app.storage.checkpoint import FREE

FILE = EXPERIMENTS / "leaderboard" / "protocol.toml"
RECORD = EXPERIMENTS / "results" / "leaderboard"
CHOSEN, ADDED = "chosen.json", "added.json"
TRIES = 8  #: configurations of each method
COSTS = "costs"  #: column of the run that counts operations and measures memory
DRAWS = 2000  #: bootstrap samples
GLOBAL, PERSONAL = "accuracy", "personal.accuracy"  #: curves of the two scores
OWN = {"method", "global-model", "feature-dim"}
"""Settings at the top level that a method's row may choose."""
RATE = "train.lr"

Flattened = Annotated[dict[str, Value], BeforeValidator(flatten)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@final
class Fleet(_Part):
    """Architectures of the clients."""

    about: str
    largest: str
    set: Flattened


@final
class Kind(_Part):
    """Settings of all methods of a kind, such as one-shot methods."""

    set: Flattened


@final
class Tuning(_Part):
    """Seed and settings of the runs that choose configurations."""

    seed: int
    set: Flattened


@final
class Budget(_Part):
    """Limits for accuracies at equal costs, for a whole run."""

    bytes: float
    """Bytes that all clients send and receive."""
    flops: float
    """Floating-point operations of training on clients and server."""


@final
class Row(_Part):
    """A method. It has a row of the board on each of its fleets."""

    name: str = Field(min_length=1)
    fleets: list[str] = Field(min_length=1)
    kinds: list[str] = []
    sends: str
    """What leaves a client, besides sizes and scores."""
    reference: bool = False
    """Whether it is a baseline on all fleets."""
    ranked: bool = True
    """Whether it has a rank; false for training that is not federated."""
    largest: bool = False
    """Whether the global score is that of the fleet's largest network."""
    set: Flattened
    space: dict[str, Annotated[list[Value], Field(min_length=2, max_length=2)]] = {}
    """Two values of each further setting that is chosen with the learning rate."""


@final
class Protocol(_Part):
    """The content of the protocol's file."""

    version: int
    title: str
    seeds: list[int]
    partitions: list[int]
    alphas: list[float]
    rates: list[float] = Field(min_length=TRIES, max_length=TRIES)
    base: Flattened
    tuning: Tuning
    budget: Budget
    fleet: dict[str, Fleet]
    kind: dict[str, Kind]
    row: list[Row]

    @property
    def columns(self) -> dict[str, Flat]:
        """Return the settings of each column: a concentration α and a partition."""
        pairs = itertools.product(self.alphas, self.partitions)
        return {column(a, p): {"data.alpha": a, "data.seed": p} for a, p in pairs}

    def configurations(self, row: Row) -> list[Flat]:
        """Return the configurations that are tried for a row.

        They are eight learning rates; four rates with both values of one further setting; or half
        of the combinations of four rates and two further settings, each pair of values once.
        """
        if not row.space:
            return [{RATE: rate} for rate in self.rates]
        axes: list[Sequence[Value]] = [self.rates[1::2], *row.space.values()]
        whole = itertools.product(*(range(len(axis)) for axis in axes))
        kept = [at for at in whole if len(axes) == 2 or sum(at) % 2 == 0]
        keys = (RATE, *row.space)
        return [
            dict(zip(keys, (axis[i] for axis, i in zip(axes, at, strict=True)), strict=True))
            for at in kept
        ]

    def settings(self, row: Row, fleet: str) -> Flat:
        """Return the settings of a row beyond those of all rows, without a configuration."""
        flat = dict(self.fleet[fleet].set)
        for kind in row.kinds:
            flat |= self.kind[kind].set
        return flat | row.set


def column(alpha: float, partition: int) -> str:
    """Return the name of a column of the board."""
    return f"α = {alpha:g}, partition {partition}"


@final
@dataclass(frozen=True)
class Place:
    """A row of the board: a method on one fleet."""

    row: Row
    fleet: str
    added: bool = False
    """Whether a user has added it, with a configuration of the user's choice."""

    @property
    def name(self) -> str:
        return f"{self.row.name}, {self.fleet}" if len(self.row.fleets) > 1 else self.row.name

    @property
    def one_shot(self) -> bool:
        return "one-shot" in self.row.kinds

    @property
    def public(self) -> bool:
        return "public" in self.row.kinds


def read(path: Path = FILE) -> Protocol:
    """Read a protocol. Raises ``ValueError``, one line, if the file is none."""
    protocol = checked(Protocol, read_toml(path), path)
    for row in protocol.row:
        for what, names, known in (
            ("fleet", row.fleets, protocol.fleet),
            ("kind", row.kinds, protocol.kind),
        ):
            for one in names:
                if one not in known:
                    raise ValueError(f"{path}: {row.name}: {what} {one!r} is none of its tables")
        if len(protocol.configurations(row)) != TRIES:
            raise ValueError(f"{path}: {row.name} has other than {TRIES} configurations")
    return protocol


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
        self.chosen: dict[str, Flat] = self._load(CHOSEN).get("chosen", {})
        user_rows = self._load(ADDED).get("rows", [])
        try:
            added = [Row.model_validate(row) for row in user_rows]
        except ValidationError as error:
            raise ValueError(f"{folder / ADDED} is damaged: {invalid(error)}") from error
        for row in added:
            user_modules.look_in(folder / user_modules.COPIES, row.set)
        self.places = [
            *(Place(row, fleet) for row in self.protocol.row for fleet in row.fleets),
            *(Place(row, fleet, added=True) for row in added for fleet in row.fleets),
        ]

    def _load(self, name: str) -> dict[str, Any]:
        """Return the content of a file of the folder, if it is of this version."""
        path = self.folder / name
        if not path.exists():
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            version = content["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if version != self.protocol.version:
            raise ValueError(
                f"{path} is of version {version} of the protocol, and this is version "
                f"{self.protocol.version}; take another folder"
            )
        return content

    def check_rows(self, rows: Iterable[str]) -> None:
        """Raise ``ValueError``, one line, for a name that no row has."""
        names = [place.name for place in self.places]
        for row in rows:
            if row not in names:
                raise ValueError(
                    f"--row {row} is no row of the leaderboard; its rows are: {'; '.join(names)}"
                )

    def save(self) -> None:
        """Write the chosen configurations and the rows of users."""
        self.folder.mkdir(parents=True, exist_ok=True)
        version = {"version": self.protocol.version}
        files = {CHOSEN: {**version, "chosen": self.chosen}}
        if added := [place.row.model_dump() for place in self.places if place.added]:
            files[ADDED] = {**version, "rows": added}
        for name, content in files.items():
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            write_atomically(self.folder / name, text.encode())

    def tuning(self) -> TableFile:
        """Return the table whose rows are the configurations of all rows."""
        rows = [
            Line(name=f"{place.name}: {name_of(one)}", set={**self._settings(place), **one})
            for place in self.places
            if not place.added
            for one in self.protocol.configurations(place.row)
        ]
        tuning = self.protocol.tuning
        return TableFile(
            title=f"Configurations, {self.protocol.title}",
            seeds=[tuning.seed],
            base={**self.protocol.base},
            row=rows,
            column=[Line(name=COLUMN, set={**tuning.set})],
        )

    def board(self) -> TableFile:
        """Return the table of the rows that have a configuration."""
        return self._table(
            [
                (place, self.chosen.get(place.name, {}))
                for place in self.places
                if place.added or place.name in self.chosen
            ]
        )

    def _table(self, some: Iterable[tuple[Place, Flat]]) -> TableFile:
        """Return the table of rows with a configuration each."""
        rows = [Line(name=it.name, set={**self._settings(it), **one}) for it, one in some]
        columns = [
            Line(name=n, set=dict[str, object](flat)) for n, flat in self.protocol.columns.items()
        ]
        first = next(iter(self.protocol.columns.values()))
        counted: dict[str, object] = {**first, "flops": True, "memory": True}
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

        It is the one with the highest primary score of those that finish: a configuration is given
        up for the next best one if a run of the tuning or of the board does not finish.
        """
        table = self.tuning()
        cells = {cell.row: cell for cell in tables.cells(table)}
        known = tables.recorded(cells.values(), self.folder)
        unfinished, new = Unfinished(self.folder / UNFINISHED), list[str]()
        before = dict(self.chosen)
        self.hopeless, self.given_up = set[str](), dict[str, list[Flat]]()
        for place in self.places:
            if place.added:
                continue
            scores, ended = list[tuple[float, int]](), True
            tried = self.protocol.configurations(place.row)
            for i, one in enumerate(tried):
                cell = cells[f"{place.name}: {name_of(one)}"]
                record = known.get(cell.fingerprint)
                ended &= record is not None or cell.fingerprint in unfinished
                if record is not None and (value := cell.value(record)) is not None:
                    scores.append((value, -i))
            if not ended:
                continue
            best = [tried[-i] for _, i in sorted(scores, reverse=True)]
            left = [*itertools.dropwhile(partial(self._stops, unfinished, place), best)]
            self.given_up[place.name] = best[: len(best) - len(left)]
            if not left:
                self.hopeless.add(place.name)
                self.chosen.pop(place.name, None)
            elif self.chosen.get(place.name) != left[0]:
                self.chosen[place.name] = left[0]
                new.append(place.name)
        if self.chosen != before:
            self.save()
        return new

    def _stops(self, unfinished: Unfinished, place: Place, one: Flat) -> bool:
        """Return whether a run of the board with this configuration did not finish."""
        cells = tables.cells(self._table([(place, one)])) if unfinished else ()
        return any(cell.fingerprint in unfinished for cell in cells)

    @cached_property
    def recorded(self) -> dict[str, Recorded]:
        """The recorded cells by fingerprint."""
        return records.read(self.folder)

    def join(self, other: Path) -> None:
        """Add the cells, choices and ends of runs that another folder has and this one lacks."""
        known = records.read(self.folder)
        for fingerprint, record in records.read(other).items():
            if fingerprint not in known:
                records.append(self.folder, record)
        theirs = Board(other, self.protocol)
        self.chosen = {**theirs.chosen, **self.chosen}
        self.save()
        Unfinished(self.folder / UNFINISHED).join(Unfinished(other / UNFINISHED))


def open_record(folder: Path, protocol: Protocol | None = None) -> Board:
    """Return the board in ``folder``, with what the bundled record has and the folder lacks."""
    board = Board(folder, protocol)
    if RECORD.is_dir() and folder != RECORD:
        board.join(RECORD)
    board.choose()
    return board


def write(board: Board, folder: Path) -> list[Path]:
    """Write both tables as files for ``fedmosaic table``; the board once it has a row."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"tuning.toml": board.tuning()}
    if board.chosen or any(place.added for place in board.places):
        files["board.toml"] = board.board()
    for name, file in files.items():
        write_atomically(folder / name, tables.as_toml(file).encode())
    return [folder / name for name in files]


def play(
    board: Board,
    rows: Sequence[str],
    jobs: int,
    on_batch: Callable[[int], None] = lambda _: None,
    on_cell: Callable[[CellRun, str], None] = lambda *_: None,
) -> None:
    """Run what is missing in the board's folder, the fleet with the fewest rows first.

    The tuning of a fleet's rows comes before their cells. ``rows``: names of rows; none means all.
    ``on_batch`` gets the number of cells that follow, ``on_cell`` each cell at its end with the
    reason why it did not finish, if so.

    Raises ``ValueError``, one line, for an unknown row or settings that cannot run.
    """
    names = [place.name for place in board.places]
    board.check_rows(rows)
    unfinished = Unfinished(board.folder / UNFINISHED)
    wanted = [place for place in board.places if place.name in (rows or names)]
    fleets = [[p.name for p in wanted if p.fleet == fleet] for fleet in board.protocol.fleet]
    for some, step in itertools.product(sorted(fleets, key=len), (tuned, scored)):
        while left := _left(step(board, some), board.folder, unfinished):
            tables.check(left)
            on_batch(len(left))
            with closing(Pool(left, board.folder, jobs, unfinished)) as pool:
                for cell in pool.play(left):
                    on_cell(cell, unfinished.get(cell.fingerprint, ""))
            board.choose()


def _left(todo: Sequence[CellRun], folder: Path, unfinished: Unfinished) -> list[CellRun]:
    """Return the cells that are still to run: of all rows, those of one seed.

    After each seed a row whose run did not finish gets its next configuration.
    """
    left = [c for c in tables.missing(todo, folder) if c.fingerprint not in unfinished]
    return [cell for cell in left if cell.seed == left[0].seed]


SHORT = 10
"""Part of a run's rounds, or of the only round's epochs, that an estimate runs: one tenth."""


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
        flat[key] = int(flat[key]) // SHORT
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
            yield place, spent - repeated + SHORT * repeated


def runs_of_a_row(protocol: Protocol) -> int:
    """Return the number of runs of a row: its tuning, its cells and the run that counts costs."""
    return TRIES + len(protocol.columns) * len(protocol.seeds) + 1


def tuned(board: Board, rows: Sequence[str]) -> list[CellRun]:
    """Return the tuning cells of rows that have no chosen configuration yet."""
    open_ = {p.name for p in board.places if p.name in rows and p.name not in board.chosen}
    return [c for c in tables.cells(board.tuning()) if c.row.rpartition(": ")[0] in open_]


def scored(board: Board, rows: Sequence[str]) -> list[CellRun]:
    """Return the board's cells of rows that have a configuration."""
    return [cell for cell in tables.cells(board.board()) if cell.row in rows]


@final
@dataclass(frozen=True)
class Rank:
    """Rank of a row among the rows of a section, by one score.

    ``rank``: 1 and the number of rows that are better, each by a bootstrap interval of the
    difference above 0. ``worst``: the number of rows without those that are worse in this sense.
    ``low``, ``high``: 95 % interval of the mean.
    """

    rank: int
    worst: int
    low: float
    high: float


def ranks(values: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, Rank]:
    """Rank rows by their mean; ``values``: by row, [partitions, seeds].

    The bootstrap draws partitions and seeds with replacement, the same for all rows, because rows
    with the same partition and seed share samples and selections of clients.
    """
    if not values:
        return {}
    stacked = np.stack(list(values.values()))
    _, partitions, seeds = stacked.shape
    draw = np.random.default_rng(seed)
    by_partition = draw.multinomial(partitions, [1 / partitions] * partitions, DRAWS) / partitions
    by_seed = draw.multinomial(seeds, [1 / seeds] * seeds, DRAWS) / seeds
    means = np.einsum("rps,bp,bs->rb", stacked, by_partition, by_seed)
    better = np.quantile(means[None] - means[:, None], 0.025, axis=2) > 0  # [row, other row]
    out = dict[str, Rank]()
    for i, name in enumerate(values):
        low, high = np.quantile(means[i], (0.025, 0.975))
        worst = len(means) - int(better[:, i].sum())
        out[name] = Rank(1 + int(better[i].sum()), worst, float(low), float(high))
    return out


def at_cost(record: Recorded, score: str, costs: Sequence[float], limit: float) -> float | None:
    """Return the last score before the cumulative ``costs`` of the rounds exceed ``limit``.

    ``costs``: a number for each entry of the curve, the census first. None if no scored round is
    within the limit.
    """
    total, value = 0.0, None
    scores = record.curve.get(score, [])
    for cost, scored_value in zip(costs, scores, strict=False):
        total += cost
        if total > limit:
            break
        value = scored_value if scored_value is not None else value
    return value


@final
@dataclass(frozen=True)
class Standing:
    """A row in a section: numbers are means over partitions and seeds, None if unknown.

    ``missing``: cells that are neither recorded nor ended; ``failed``: reasons of runs that ended.
    """

    place: Place
    values: Mapping[str, float | None]
    grid: Mapping[str, np.ndarray]
    missing: Sequence[str]
    failed: Sequence[str]
    configuration: Flat
    given_up: Sequence[Flat] = ()
    """Configurations that were better in the tuning; a run of the board did not finish."""
    ranks: dict[str, Rank] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether the row has a configuration, or none of its configurations has finished."""
        return bool(self.configuration or self.failed or self.place.added)

    @property
    def complete(self) -> bool:
        return not self.missing and not self.failed


@final
@dataclass(frozen=True)
class Section:
    """The rows of one fleet at one α. The complete rows have ranks among themselves."""

    fleet: str
    alpha: float
    standings: Sequence[Standing]

    @property
    def ranked(self) -> Sequence[Standing]:
        """The rows with a rank."""
        return [one for one in self.standings if one.ranks]


def sections(board: Board) -> Iterator[Section]:
    """Yield a section for each fleet and α, with the ranks of its complete rows.

    Centralised training and rows that did not finish have no rank. One-shot methods are ranked
    among themselves.
    """
    by_row: dict[str, list[CellRun]] = {}
    for cell in tables.cells(board.board()):
        by_row.setdefault(cell.row, []).append(cell)
    unfinished = Unfinished(board.folder / UNFINISHED)
    for fleet, alpha in itertools.product(board.protocol.fleet, board.protocol.alphas):
        standings = [
            _standing(board, place, alpha, by_row.get(place.name, []), unfinished)
            for place in board.places
            if place.fleet == fleet
        ]
        section = Section(fleet, alpha, standings)
        for score, one_shot in itertools.product((GLOBAL, PERSONAL), (False, True)):
            kept = [
                s
                for s in standings
                if s.complete
                and s.place.row.ranked
                and score in s.grid
                and s.place.one_shot == one_shot
            ]
            found = ranks({s.place.name: s.grid[score] for s in kept})
            for one in kept:
                one.ranks[score] = found[one.place.name]
        yield section


def _standing(
    board: Board, place: Place, alpha: float, cells: Sequence[CellRun], unfinished: Unfinished
) -> Standing:
    protocol = board.protocol
    by_key = {(cell.line.name, cell.seed): cell for cell in cells}
    wanted = [(column(alpha, p), seed) for p in protocol.partitions for seed in protocol.seeds]
    known, missing, failed = dict[tuple[str, int], Recorded](), list[str](), list[str]()
    if not cells:
        none = "no configuration has finished"
        failed += [none] if place.name in board.hopeless else []
        missing += [] if failed else ["no configuration is chosen yet"]
    for key in [*wanted, (COSTS, protocol.seeds[0])] if cells else ():
        cell = by_key[key]
        if (record := board.recorded.get(cell.fingerprint)) is not None:
            known[key] = record
        elif cell.fingerprint in unfinished:
            failed.append(f"{key[0]}, seed {key[1]}: {unfinished[cell.fingerprint]}")
        else:
            missing.append(f"{key[0]}, seed {key[1]}")
    runs = [known[key] for key in wanted if key in known]
    measured = known.get((COSTS, protocol.seeds[0]))
    values, grid = dict[str, float | None](), dict[str, np.ndarray]()
    curves = {GLOBAL: _global(protocol, place), PERSONAL: PERSONAL}
    for score, curve in curves.items():
        last = [course[-1][1] if (course := run.course(curve)) else None for run in runs]
        values[score] = _mean(last)
        if len(runs) == len(wanted) and None not in last:
            shape = (len(protocol.partitions), len(protocol.seeds))
            grid[score] = np.array(last, dtype=float).reshape(shape)
        by_bytes = [at_cost(run, curve, _traffic(run), protocol.budget.bytes) for run in runs]
        values[f"{score} at bytes"] = _mean(by_bytes)
        if measured is not None:
            work = _work(measured)
            by_flops = [at_cost(run, curve, work, protocol.budget.flops) for run in runs]
            values[f"{score} at flops"] = _mean(by_flops)
    values["worst"] = _mean([run.measured("personal.worst") for run in runs])
    rounds = max((t or 0 for run in runs for t in run.curve.get("round", [])), default=0)
    sent = _mean([sum(_traffic(run)) for run in runs])
    values["bytes a round"] = None if sent is None or not rounds else sent / rounds
    if measured is not None:
        values["flops"] = measured.measured("flops.total")
        values["memory"] = measured.measured("memory.largest")
    configuration = board.chosen.get(place.name, {})
    given_up = board.given_up.get(place.name, [])
    return Standing(place, values, grid, missing, failed, configuration, given_up)


def _global(protocol: Protocol, place: Place) -> str:
    """Return the curve of the row's global score."""
    if place.row.largest:
        return f"accuracies.{protocol.fleet[place.fleet].largest}"
    return GLOBAL


def _traffic(record: Recorded) -> list[float]:
    """Return the bytes of all clients in each round, the census first."""
    ways = (record.curve.get(f"bytes.{way}", []) for way in ("up", "down"))
    return [(up or 0) + (down or 0) for up, down in zip(*ways, strict=False)]


def _work(record: Recorded) -> list[float]:
    """Return the operations of clients and server in each round, the census first."""
    sides = (record.curve.get(f"flops.{side}", []) for side in ("clients", "server"))
    return [(a or 0) + (b or 0) for a, b in itertools.zip_longest(*sides, fillvalue=0)]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there are no values or one is missing."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def add(board: Board, folders: Iterable[Path], name: str, sends: str) -> Place:
    """Add the runs of a user's method as a row, after checking that they follow the protocol.

    ``name``: the row's; empty: the runs' name, else their method. ``sends``: what leaves a client.
    A run that is missing leaves the row incomplete, so more runs can be added later.

    Raises ``ValueError``, one line, for a run that is incomplete or differs from the protocol, and
    for runs of different configurations.
    """
    found = list[tuple[Path, Flat, str, list[str], str, int]]()
    for folder in folders:
        if records.completed(folder) is None:
            raise ValueError(f"{folder} holds no finished run")
        flat = load_run(folder)
        found.append((folder, flat, *_match(board.protocol, folder, flat)))
    if not found:
        raise ValueError("--add needs the folder of at least one run")
    first_folder, first, fleet, kinds, _, _ = found[0]
    own = _own(board.protocol, first)
    for folder, flat, other_fleet, other_kinds, _, _ in found:
        if (other_fleet, other_kinds, _own(board.protocol, flat)) != (fleet, kinds, own):
            raise ValueError(f"{folder} has another configuration than {first_folder}")
    name = name or str(first.get("name") or first["method"])
    row = Row(name=name, fleets=[fleet], kinds=kinds, sends=sends, set=own)
    for place in board.places:
        if place.name == name and (not place.added or place.row != row):
            raise ValueError(f"the leaderboard has a row {name!r}; give another: --name NAME")
    place = Place(row, fleet, added=True)
    board.places = [one for one in board.places if one.name != name] + [place]
    copies = board.folder / user_modules.COPIES
    user_modules.copy(first, copies)
    user_modules.look_in(copies, row.set)
    cells = {(c.line.name, c.seed): c for c in scored(board, [name])}
    for folder, _, _, _, column_name, seed in found:
        record = Recorded.of(cells[column_name, seed].flat, folder)
        assert record is not None
        records.append(board.folder, record)
    board.save()
    return place


def _match(protocol: Protocol, folder: Path, flat: Flat) -> tuple[str, list[str], str, int]:
    """Return the fleet, kinds, column and seed whose settings a run has.

    Raises ``ValueError`` with the settings that differ from the nearest column.
    """
    seed, nearest = int(flat["seed"]), dict[str, tuple[Value, Value]]()
    costs = {"flops": True, "memory": True}
    columns = dict(protocol.columns)
    columns[COSTS] = {**next(iter(columns.values())), **costs}
    kinds = [list(some) for n in range(4) for some in itertools.combinations(protocol.kind, n)]
    for fleet, some, (name, settings) in itertools.product(protocol.fleet, kinds, columns.items()):
        wanted = {**defaults(), **protocol.base, **protocol.fleet[fleet].set}
        for kind in some:
            wanted |= protocol.kind[kind].set
        wanted |= settings
        differs = {
            key: (flat[key], value)
            for key, value in wanted.items()
            if _fixed(key) and flat.get(key) != value
        }
        seeds = protocol.seeds[:1] if name == COSTS else protocol.seeds
        if seed not in seeds:
            differs["seed"] = (seed, f"one of {', '.join(map(str, seeds))}")
        if not differs:
            return fleet, some, name, seed
        if not nearest or len(differs) < len(nearest):
            nearest = differs
    wrong = ", ".join(
        f"{key} = {own} instead of {'nothing' if value == '' else value}"
        for key, (own, value) in nearest.items()
    )
    raise ValueError(f"{folder} does not follow the protocol: {wrong}")


def _fixed(key: str) -> bool:
    """Return whether the protocol fixes a setting for all methods."""
    table, _, name = key.rpartition(".")
    if table in ("data", "score", "finetune"):
        return name not in {kebab(free) for free in FREE.get(table, ())} | {
            "dir",
            "digest",
            "download",
        }
    if table == "train":
        return name in ("epochs", "steps", "batch-size")
    free = {kebab(free) for free in FREE["run"]} - {"rounds"}
    return not table and name not in free | OWN | {"seed", "device", "threads"}


def _own(protocol: Protocol, flat: Flat) -> Flat:
    """Return the settings of a run that its method chooses and that differ from the board's."""
    usual = {**defaults(str(flat["method"])), **protocol.base}
    return {
        key: value
        for key, value in sorted(flat.items())
        if value != usual.get(key) and _chosen(key) and reads(str(flat["method"]), key)
    }


def _chosen(key: str) -> bool:
    """Return whether a setting belongs to a method's configuration."""
    table = key.rpartition(".")[0]
    if not table or table in ("data", "score"):
        return key in OWN
    return not _fixed(key)
