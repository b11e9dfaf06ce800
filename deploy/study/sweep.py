"""``fedmosaic sweep``: choose settings by their scores on validation samples.

A sweep file is an experiment, ``[base]``, and a ``[space]`` of values for some of its settings.
Each configuration runs once for each seed. It is scored on validation samples, which are cut from
the clients' training samples (``data.validation``), and never on a test set.

A sweep is a table (``paper_table.py``) whose rows are configurations. It shares the table's cells,
fingerprints and record, so that a sweep resumes, and ``fedmosaic table`` shows what it wrote.
"""

import itertools
import json
import math
import multiprocessing
import random
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from rich.console import Console

from common.extras import imported
from common.files import write_atomically
from common.parse import defaults, reads, to_toml
from common.settings.plugins import nearest
from common.settings.section import Value, kebab
from deploy.report import read as reading
from deploy.report.style import frames, save, series, set_log, style
from deploy.report.table import clean
from deploy.run import preload
from deploy.settings import checked, find, flatten, read_toml
from deploy.study import paper_table as tables
from deploy.study import records
from deploy.study.paper_table import CellRun, Comparison, Line, TableFile
from deploy.study.records import Flat
from deploy.user_modules import look_in
from server_app.stopped import REMEDY

COLUMN = "validation"  #: the only column of a sweep's table
VALIDATION = ("data.validation", "data.score-on")
"""Settings of a sweep that its result does not have."""
SHARED = {"title", "seeds", "measure", "unit", "format", "better", "note"}
"""Keys that a sweep file and its table have in common."""
CHOSEN = "chosen.toml"
UNFINISHED = "unfinished.json"
BATCH = 4
"""Configurations that Optuna proposes at a time, whatever the number of processes."""
PEERS, GRACE = 4, 0.25
"""A run may end early after ``GRACE`` of its rounds, if ``PEERS`` others have finished."""

Number = int | float
Values = list[Value]
Configuration = dict[str, Any]  #: values of the settings in the space, by key


@final
class Range(BaseModel):
    """An interval of numbers; whole numbers if both ends are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: Number
    high: Number
    log: bool = False
    """Whether the logarithm is uniform instead of the number."""

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low = {self.low} should be below high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low} is not allowed with log; it should be above 0")
        return self

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, source: random.Random) -> Number:
        """Return a number in the interval."""
        ends = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.whole and not self.log:
            return source.randint(int(self.low), int(self.high))
        value = source.uniform(*ends)
        value = float(f"{math.exp(value) if self.log else value:.4g}")
        return round(value) if self.whole else value


Choice = Annotated[
    Annotated[Values, Tag("values"), Field(min_length=1)] | Annotated[Range, Tag("range")],
    Discriminator(lambda value: "values" if isinstance(value, list) else "range"),
]


def _flat_space(space: object, prefix: str = "") -> object:
    """Flatten ``[space.train] lr = …`` to ``train.lr``; a table with ``low`` is a range.

    Raises ``ValueError`` for what is neither a range nor a list of distinct values.
    """
    if not isinstance(space, Mapping):
        return space
    flat: dict[str, object] = {}
    for key, value in space.items():
        where = f"{prefix}{key}"
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            inner = _flat_space(value, f"{where}.")
            flat |= inner if isinstance(inner, dict) else {}
            continue
        if not isinstance(value, Mapping):
            _check_values(f"space.{where}", value)
        flat[where] = value
    return flat


def _check_values(key: str, values: object) -> None:
    known = bool, int, float, str
    if not isinstance(values, list) or not values or not all(isinstance(v, known) for v in values):
        raise ValueError(
            f"{key} = {values} is not allowed; it should be a list of numbers, texts or truth "
            "values that is not empty, or a range { low = …, high = … }"
        )
    tables.check_distinct(key, values)


@final
class SweepFile(BaseModel):
    """The content of a sweep file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = "Sweep"
    seeds: tables.Seeds = Field([1], min_length=1)
    search: Literal["grid", "random", "optuna"] = "grid"
    configurations: int = Field(8, ge=1)
    """Number of configurations of ``random`` and ``optuna``."""
    search_seed: int = Field(0, alias="search-seed")
    prune: bool = False
    """Whether a run ends early if its score is below the median of the others in that round."""
    measure: str = tables.MEASURE
    unit: str = "%"
    format: tables.Format = ".2f"
    better: Literal["higher", "lower"] = "higher"
    note: str = ""
    base: dict[str, object] = {}
    space: Annotated[dict[str, Choice], Field(min_length=1), BeforeValidator(_flat_space)]

    @model_validator(mode="after")
    def _consistent(self) -> "SweepFile":
        if self.prune and (self.measure, self.better) != (tables.MEASURE, "higher"):
            raise ValueError(
                f"prune = true compares the primary score during the runs; it needs measure = "
                f'"{tables.MEASURE}" and better = "higher"'
            )
        return self

    def fixed(self) -> Flat:
        """Return the settings of ``[base]``, flat."""
        return flatten(self.base)


@final
@dataclass(frozen=True)
class Result:
    """Results of a sweep so far.

    ``filled``: the table of all configurations; ``best``: the row with the best mean over all
    seeds; None if no configuration has finished. ``unfinished``: why a cell has no number, by row.
    """

    file: TableFile
    filled: Comparison
    configurations: Mapping[str, Configuration]
    best: str | None
    unfinished: Mapping[str, str]


def read(source: Path | Mapping[str, object]) -> SweepFile:
    """Read a sweep file, or a mapping with the same keys. Raises ``ValueError``, one line."""
    where = Path("sweep") if isinstance(source, Mapping) else find(source)
    content = _kebab(source) if isinstance(source, Mapping) else read_toml(where)
    if not content.get("space"):
        raise ValueError(
            f"{where} has no [space], so it is no sweep: name settings and their values"
        )
    file = checked(SweepFile, content, where)
    fixed = file.fixed()
    if fixed.get("data.validation", 0) == 0:
        raise ValueError(
            f"{where}: data.validation is 0; a sweep scores on validation samples, so [base] needs "
            "a share of the training samples, such as 0.2"
        )
    if (score_on := fixed.get("data.score-on", COLUMN)) != COLUMN:
        raise ValueError(
            f'{where}: data.score-on = "{score_on}" is not allowed in a sweep; allowed: {COLUMN}'
        )
    for key in (*VALIDATION, "seed", "name", "labels"):
        if key in file.space:
            raise ValueError(
                f"{where}: {key} is not allowed in [space]; it is the same for all configurations"
            )
    _check_methods(file, where)
    ranges = [key for key, values in file.space.items() if isinstance(values, Range)]
    if file.search == "grid" and ranges:
        raise ValueError(
            f'{where}: space.{ranges[0]} is a range, and search = "grid" takes lists of values; '
            "allowed for a range: random, optuna"
        )
    return file


def _kebab(table: Mapping[str, object]) -> dict[str, object]:
    """Return a mapping from Python with the keys of a file: ``batch_size`` is ``batch-size``."""
    return {
        kebab(str(key)): _kebab(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
    }


def _check_methods(file: SweepFile, where: Path) -> None:
    """Find the user's modules, and raise ``ValueError`` for a setting that no method reads."""
    tried = file.space.get("method", [])
    methods = [str(one) for one in tried] if isinstance(tried, list) else []
    fixed = file.fixed()
    methods = methods or [str(fixed.get("method") or defaults()["method"])]
    for method in methods:
        look_in(where.parent, {**fixed, "method": method})
    for key in file.space:
        if not (key.startswith("node.") or any(reads(method, key) for method in methods)):
            raise ValueError(f"{where}: space.{key} is not read by {', '.join(methods)}")


def target(source: Path | None, out: Path | None) -> tuple[Path, str]:
    """Return the folder of a sweep and the name of its files; ``source``: its file, if any.

    Raises ``ValueError``, one line, if the sweep's files would replace its own file.
    """
    stem = source.stem if source else "sweep"
    folder = (out or Path("runs") / stem).expanduser().resolve()
    if f"{stem}.toml" == CHOSEN:
        raise ValueError(f"{source}: the sweep's result has this name; rename the file")
    if source and (folder / f"{stem}.toml").exists() and (folder / f"{stem}.toml").samefile(source):
        raise ValueError(
            f"out = {folder} is the folder of {source}, which the sweep's table would replace; "
            "choose another folder"
        )
    return folder, stem


def name(configuration: Configuration) -> str:
    """Return the name of a configuration's row: ``train.lr = 0.1, fedprox.mu = 0.01``."""
    return ", ".join(f"{key} = {value}" for key, value in configuration.items())


def as_table(file: SweepFile, configurations: Iterable[Configuration]) -> TableFile:
    """Return the table file whose rows are ``configurations``."""
    rows = [Line(name=name(one), set=dict(one)) for one in configurations]
    base: dict[str, object] = {**file.fixed(), "data.score-on": COLUMN}
    return TableFile(
        **file.model_dump(include=SHARED), base=base, row=rows, column=[Line(name=COLUMN)]
    )


class Search(Protocol):
    """Proposes configurations."""

    def ask(self) -> list[Configuration]:
        """Return the next configurations; none at the end."""

    def tell(self, values: Sequence[float | None]) -> None:
        """Take the mean of each configuration of the last ``ask``; None: it did not finish."""


@final
class Planned:
    """All configurations at once: a grid, or random draws."""

    def __init__(self, configurations: list[Configuration]) -> None:
        self._left = configurations

    def ask(self) -> list[Configuration]:
        asked, self._left = self._left, []
        return asked

    def tell(self, values: Sequence[float | None]) -> None:
        """Do nothing."""


@final
class Optuna:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011)."""

    def __init__(self, file: SweepFile) -> None:
        optuna = imported("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=file.search_seed, constant_liar=True)
        direction = "maximize" if file.better == "higher" else "minimize"
        self._study = optuna.create_study(direction=direction, sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._space = {
            key: self._distribution(optuna.distributions, values)
            for key, values in file.space.items()
        }
        self._left, self._trials = file.configurations, list[Any]()

    @staticmethod
    def _distribution(kinds: Any, values: Values | Range) -> Any:
        if not isinstance(values, Range):
            return kinds.CategoricalDistribution(values)
        kind = kinds.IntDistribution if values.whole else kinds.FloatDistribution
        return kind(values.low, values.high, log=values.log)

    def ask(self) -> list[Configuration]:
        self._trials = [self._study.ask(self._space) for _ in range(min(BATCH, self._left))]
        self._left -= len(self._trials)
        return [dict(trial.params) for trial in self._trials]

    def tell(self, values: Sequence[float | None]) -> None:
        for trial, value in zip(self._trials, values, strict=True):
            failed = value is None or not math.isfinite(value)
            self._study.tell(trial, *([None, self._failed] if failed else [value]))


def search_of(file: SweepFile) -> Search:
    """Return the search that a sweep file names."""
    if file.search == "optuna":
        return Optuna(file)
    source = random.Random(file.search_seed)
    if file.search == "random":
        drawn = (
            {
                key: values.draw(source) if isinstance(values, Range) else source.choice(values)
                for key, values in file.space.items()
            }
            for _ in range(100 * file.configurations)
        )
        distinct = {name(one): one for one in drawn}  # a small space has fewer
        return Planned(list(distinct.values())[: file.configurations])
    lists = [values for values in file.space.values() if isinstance(values, list)]
    return Planned([dict(zip(file.space, some, strict=True)) for some in itertools.product(*lists)])


def run(
    file: SweepFile,
    folder: Path,
    jobs: int,
    on_batch: Callable[[int], None] = lambda _: None,
    on_cell: Callable[[CellRun, str], None] = lambda *_: None,
) -> Result:
    """Run a sweep in ``folder``, or what is missing there, and return what it found.

    ``jobs``: runs at a time. ``on_batch`` gets the number of cells that follow, ``on_cell`` each
    cell at its end with the reason why it did not finish, if so.

    Raises ``ValueError``, one line, for settings that cannot run, before any of their batch does.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} is not allowed; it should be at least 1")
    plan, configurations = search_of(file), dict[str, Configuration]()
    unfinished = Unfinished(folder / UNFINISHED)
    while asked := plan.ask():
        configurations |= {name(one): one for one in asked}
        whole = as_table(file, configurations.values())
        rows = [name(one) for one in asked]
        todo = tables.part(whole, rows, [], [])
        tables.check(todo)
        left = [cell for cell in tables.missing(todo, folder) if cell.fingerprint not in unfinished]
        on_batch(len(left))
        with closing(Pool(todo, folder, jobs, unfinished, file.prune)) as pool:
            for cell in pool.play(left):
                on_cell(cell, unfinished.get(cell.fingerprint, ""))
                _check_measured(cell, folder)
        plan.tell([_mean(tables.collect(whole, folder), row, len(file.seeds)) for row in rows])
    return result(file, configurations, folder)


def _check_measured(cell: CellRun, folder: Path) -> None:
    """Raise ``ValueError`` if a finished run has no number of the measure, since none will."""
    record = tables.recorded([cell], folder).get(cell.fingerprint)
    if record is not None and cell.value(record) is None:
        known = nearest(cell.measure, record.measures())
        raise ValueError(f'measure = "{cell.measure}" is no number of this run{known}')


def result(file: SweepFile, configurations: Mapping[str, Configuration], folder: Path) -> Result:
    """Return the result of these configurations from the record in ``folder``."""
    whole, unfinished = as_table(file, configurations.values()), Unfinished(folder / UNFINISHED)
    filled = tables.collect(whole, folder)
    means = {row: _mean(filled, row, len(file.seeds)) for row in filled.rows}
    complete = {row: mean for row, mean in means.items() if mean is not None}
    top = max if file.better == "higher" else min
    why = {
        c.row: unfinished[c.fingerprint] for c in tables.cells(whole) if c.fingerprint in unfinished
    }
    best = top(complete, key=complete.__getitem__) if complete else None
    return Result(whole, filled, configurations, best, why)


def _mean(filled: Comparison, row: str, seeds: int) -> float | None:
    """Return a row's mean if all of its seeds have a finite number."""
    values = filled.cell(row, COLUMN).values
    whole = len(values) == seeds and all(map(math.isfinite, values))
    return statistics.fmean(values) if whole else None


@final
class Unfinished(dict[str, str]):
    """Why a cell did not finish, by its fingerprint; kept in a file, so that it is not repeated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            super().__init__(json.loads(path.read_bytes()) if path.exists() else {})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}; delete it to try again") from error

    def add(self, cell: CellRun, why: str) -> None:
        """Note a cell in the file."""
        self.join({cell.fingerprint: why})

    def join(self, others: Mapping[str, str]) -> None:
        """Note further cells in the file, by their fingerprints."""
        if others.keys() - self.keys():
            self.update({**others, **self})
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(self, indent=1).encode())


@dataclass
class Playing:
    """A cell that runs in a process; ``connection`` receives the reason if it fails."""

    cell: CellRun
    process: BaseProcess
    connection: Connection
    stopped: str = ""


@final
@dataclass
class Pool:
    """Processes that play the cells of a sweep, one cell each."""

    peers: Sequence[CellRun]
    folder: Path
    jobs: int
    unfinished: Unfinished
    prune: bool = False
    _running: list[Playing] = field(default_factory=list)

    def play(self, todo: Sequence[CellRun]) -> Iterator[CellRun]:
        """Run the cells and yield each when it has ended."""
        left = list(todo)
        while left or self._running:
            while left and len(self._running) < self.jobs:
                self._running.append(self._start(left.pop(0)))
            ended = wait([one.process.sentinel for one in self._running], timeout=1.0)
            for one in [one for one in self._running if one.process.sentinel in ended]:
                self._running.remove(one)
                self._finish(one)
                yield one.cell
            if self.prune:
                self._prune()

    def close(self) -> None:
        """End the processes that still run; their runs resume from their checkpoints."""
        for one in self._running:
            one.process.terminate()
            one.process.join()

    def _start(self, cell: CellRun) -> Playing:
        preload.begin()
        context = multiprocessing.get_context("forkserver")
        connection, end = context.Pipe(duplex=False)
        process = context.Process(
            target=_play, args=(cell.flat, self._place(cell), self.folder / "learnt", end)
        )
        with preload.without_main():
            process.start()
        end.close()
        return Playing(cell, process, connection)

    def _place(self, cell: CellRun) -> Path:
        return self.folder / records.RUNS / cell.fingerprint

    def _finish(self, one: Playing) -> None:
        one.process.join()
        reason = ""
        with suppress(EOFError):
            reason = one.connection.recv()
        tables.clear(self._place(one.cell))
        if one.cell.fingerprint not in tables.recorded([one.cell], self.folder):
            why = one.stopped or reason or f"its process ended with {one.process.exitcode}"
            self.unfinished.add(one.cell, why)

    def _prune(self) -> None:
        """End runs whose score is below the median of the finished runs with the same seed."""
        known = records.read(self.folder)
        for one in self._running:
            t, score = self._latest(one.cell)
            finished = [
                known[c.fingerprint]
                for c in self.peers
                if c.seed == one.cell.seed and c.fingerprint in known
            ]
            peers = [
                value for it in finished for round_, value in it.course("primary") if round_ == t
            ]
            if t < GRACE * int(one.cell.flat["rounds"]) or len(peers) < PEERS or score is None:
                continue
            middle = statistics.median(peers)
            if score < middle and not one.stopped:
                one.stopped = f"ended in round {t}, {score:.1%}; the others' median is {middle:.1%}"
                one.process.terminate()

    def _latest(self, cell: CellRun) -> tuple[int, float | None]:
        """Return the last scored round of a running cell, and its primary accuracy."""
        place = self._place(cell)
        if not (place / "journal.jsonl").exists():
            return 0, None
        scored = [
            e for e in reading.read(place).entries if e.round and e.primary_accuracy is not None
        ]
        return (scored[-1].round, scored[-1].primary_accuracy) if scored else (0, None)


def _play(flat: Flat, place: Path, learnt: Path, end: Connection) -> None:
    """Run one cell in this process, and send the reason if it fails."""
    from deploy.run import launch

    preload.settle()
    try:
        launch.cell(flat, place, workers=0, console=Console(quiet=True), learnt=learnt)
    except Exception as error:  # one configuration that cannot train ends no sweep
        line = REMEDY.sub("", str(error).partition("\n")[0])
        end.send(line.partition(launch.TRACEBACKS)[0])  # the cell's files are deleted


def chosen(file: SweepFile, found: Result) -> str:
    """Return the experiment file of the best configuration, which trains on all samples."""
    assert found.best is not None
    flat = {key: value for key, value in file.fixed().items() if key not in VALIDATION}
    score = found.filled.ours(found.best, COLUMN)
    tried = f"best of {len(found.configurations)} configurations on validation samples"
    head = f"# {file.title}: {tried}, {score} {file.unit}\n"
    return head + to_toml(flat | found.configurations[found.best])


def write(file: SweepFile, found: Result, folder: Path, stem: str) -> list[Path]:
    """Write the table and its file, a picture of the space, and the chosen configuration."""
    written = tables.write(found.filled, found.file, folder, stem)
    texts = {f"{stem}.toml": tables.as_toml(found.file)}
    if found.best is not None:
        texts[CHOSEN] = chosen(file, found)
    for file_name, text in texts.items():
        write_atomically(folder / file_name, text.encode())
    picture(found, list(file.space), folder / f"{stem}-space.png")
    return [*written, folder / f"{stem}-space.png", *(folder / one for one in texts)]


def picture(found: Result, keys: Sequence[str], path: Path) -> None:
    """Draw a panel for each setting: the mean score of each configuration against its value."""
    across = min(len(keys), 3)
    down = -(-len(keys) // across)
    title = f"{clean(found.filled.title)}; the diamond is the chosen configuration"
    with style():
        figure, axes = frames((3.4 * across + 0.6, 2.9 * down + 0.6), down, across)
        for place, key in zip(axes.flat, keys, strict=False):
            values = [one[key] for one in found.configurations.values()]
            numeric = all(type(value) in (int, float) for value in values)
            for row, one in found.configurations.items():
                mean, is_best = found.filled.cell(row, COLUMN).mean, row == found.best
                if mean is not None:
                    look = {"marker": "D" if is_best else "o", "color": series(int(is_best))}
                    at = one[key] if numeric else str(one[key])
                    place.plot(at, mean, zorder=2 + is_best, **look)
            if numeric and min(values) > 0 and max(values) >= 10 * min(values):
                set_log(place)
            place.set_xlabel(key)
            place.set_ylabel(found.filled.unit)
        for place in list(axes.flat)[len(keys) :]:
            place.set_axis_off()
        heading = textwrap.fill(title, 34 * across)
        figure.suptitle(heading, fontsize=11.0, x=0.01, ha="left", fontweight="bold")
        save(figure, path)
