"""``fedmosaic sweep``: choose settings by their scores on validation samples.

A sweep file is an experiment, ``[base]``, and a ``[space]`` of values for some of its settings.
Each configuration runs once for each seed. It is scored on validation samples, which are cut from
the clients' training samples (``data.validation``), and never on a test set.

A sweep is a table (``paper_table.py``) whose rows are configurations. It shares the table's cells,
fingerprints and record, so that a sweep resumes, and ``fedmosaic table`` shows what it wrote.
"""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from common.extras import imported
from common.files import write_all
from common.parse import defaults, reads, to_toml
from common.settings.plugins import nearest
from common.settings.section import Value, kebab
from deploy.report import read as reading
from deploy.report.style import panels, save, series, set_log, style
from deploy.report.table import clean
from deploy.settings import checked, find, flatten, read_toml
from deploy.study import paper_table as tables
from deploy.study import records
from deploy.study.comparison import Comparison
from deploy.study.paper_table import CellRun, FilePart, Line, Sheet, TableFile
from deploy.study.records import Flat
from deploy.study.runner import OnBatch, OnCell, Runner, Running, Unfinished
from deploy.user_modules import UserModules, look_in

COLUMN = "validation"  #: the only column of a sweep's table
VALIDATION = ("data.validation", "data.score-on")
"""Settings of a sweep that its result does not have."""
CHOSEN = "chosen.toml"
BATCH = 4
"""Configurations that Optuna proposes at a time, whatever the number of processes."""
PEERS, GRACE = 4, 0.25
"""A run may end early after ``GRACE`` of its rounds, if ``PEERS`` others have finished."""

Number = int | float
Values = list[Value]
Configuration = dict[str, Any]  #: values of the settings in the space, by key


@final
class Range(FilePart):
    """An interval of numbers; whole numbers if both ends are."""

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


def _dotted_space(space: Any, prefix: str = "") -> Any:
    """Flatten ``[space.train] lr = …`` to ``train.lr``; a table with ``low`` is a range.

    Raises ``ValueError`` for what is neither a range nor a list of distinct values.
    """
    if not isinstance(space, Mapping):
        return space
    flat: dict[str, object] = {}
    for key, value in space.items():
        where = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            flat[where] = _checked_values(f"space.{where}", value)
        elif {"low", "high"} & value.keys():
            flat[where] = value
        else:
            flat |= _dotted_space(value, f"{where}.")
    return flat


def _checked_values(key: str, values: object) -> object:
    known = bool, int, float, str
    if not isinstance(values, list) or not values or not all(isinstance(v, known) for v in values):
        raise ValueError(
            f"{key} = {values} is not allowed; it should be a list of numbers, texts or truth "
            "values that is not empty, or a range { low = …, high = … }"
        )
    return tables.distinct(key, values)


@final
class SweepFile(Sheet):
    """The content of a sweep file."""

    title: str = "Sweep"
    seeds: tables.Seeds = Field([1], min_length=1)
    better: Literal["higher", "lower", ""] = ""
    """Which means are better; empty: as the measure of the runs says."""
    search: Literal["grid", "random", "optuna"] = "grid"
    configurations: int = Field(8, ge=1)
    """Number of configurations of ``random`` and ``optuna``."""
    search_seed: int = Field(0, alias="search-seed")
    prune: bool = False
    """Whether a run ends early if its score is below the median of the others in that round."""
    base: dict[str, object] = {}
    space: Annotated[dict[str, Choice], Field(min_length=1), BeforeValidator(_dotted_space)]

    @model_validator(mode="after")
    def _consistent(self) -> "SweepFile":
        if self.prune and (self.measure != tables.MEASURE or self.better):
            raise ValueError(
                f"prune = true compares the primary score during the runs; it needs measure = "
                f'"{tables.MEASURE}" and no better'
            )
        return self

    def fixed(self) -> Flat:
        """Return the settings of ``[base]``, flat."""
        return flatten(self.base)

    def named(self) -> Iterator[Flat]:
        """Yield the settings of ``[base]`` with each listed value of the space, one at a time."""
        yield self.fixed()
        for key, values in self.space.items():
            for value in values if isinstance(values, list) else ():
                yield {**self.fixed(), key: value}


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
    where = Path("sweep") if isinstance(source, Mapping) else find(source, "sweep")
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
    for named in file.named():
        look_in(where.parent, named)
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


Score = Callable[[list[Configuration]], Sequence[float | None]]
"""Returns how good each configuration is, more is better; None: it did not finish."""


def name(configuration: Configuration) -> str:
    """Return the name of a configuration's row: ``train.lr = 0.1, fedprox.mu = 0.01``."""
    return ", ".join(f"{key} = {value}" for key, value in configuration.items())


def as_table(file: SweepFile, configurations: Iterable[Configuration]) -> TableFile:
    """Return the table file whose rows are ``configurations``."""
    rows = [Line(name=name(one), set=dict(one)) for one in configurations]
    base: dict[str, object] = {**file.fixed(), "data.score-on": COLUMN}
    unset = set() if file.better else {"better"}
    shared = file.model_dump(include={*Sheet.model_fields}, exclude=unset)
    return TableFile(**shared, base=base, row=rows, column=[Line(name=COLUMN)])


def planned(file: SweepFile) -> list[Configuration]:
    """Return the configurations of a grid, or distinct random draws."""
    if file.search == "grid":
        lists = [values for values in file.space.values() if isinstance(values, list)]
        return [dict(zip(file.space, some, strict=True)) for some in itertools.product(*lists)]
    source = random.Random(file.search_seed)
    draws = (
        {
            key: values.draw(source) if isinstance(values, Range) else source.choice(values)
            for key, values in file.space.items()
        }
        for _ in range(100 * file.configurations)
    )
    distinct = {name(one): one for one in draws}  # a small space has fewer
    return list(distinct.values())[: file.configurations]


def optimise(file: SweepFile, score: Score) -> None:
    """Propose configurations by Optuna's estimator (Bergstra et al., NeurIPS 2011), in batches."""
    optuna = imported("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=file.search_seed, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {key: _distribution(optuna.distributions, one) for key, one in file.space.items()}
    for first in range(0, file.configurations, BATCH):
        trials = [study.ask(space) for _ in range(min(BATCH, file.configurations - first))]
        values = score([dict(trial.params) for trial in trials])
        for trial, value in zip(trials, values, strict=True):
            failed = value is None or not math.isfinite(value)
            study.tell(trial, *([None, optuna.trial.TrialState.FAIL] if failed else [value]))


def _distribution(kinds: Any, values: Values | Range) -> Any:
    """Return Optuna's distribution of a setting's values; ``kinds``: its module of them."""
    if not isinstance(values, Range):
        return kinds.CategoricalDistribution(values)
    kind = kinds.IntDistribution if values.whole else kinds.FloatDistribution
    return kind(values.low, values.high, log=values.log)


def run(
    file: SweepFile,
    folder: Path,
    jobs: int,
    on_batch: OnBatch = lambda _: None,
    on_cell: OnCell = lambda *_: None,
) -> Result:
    """Run a sweep in ``folder``, or what is missing there, and return what it found.

    ``jobs``: runs at a time; ``on_batch`` and ``on_cell``: see ``OnBatch`` and ``OnCell``.

    Raises ``ValueError``, one line, for settings that cannot run, before any of their batch does.
    """

    def at_end(cell: CellRun, why: str) -> None:
        on_cell(cell, why)
        _check_measured(cell, folder)

    runner = Runner(folder, jobs, on_batch, at_end)
    configurations, goodness = dict[str, Configuration](), dict[str, float | None]()

    def score(batch: list[Configuration]) -> list[float | None]:
        """Run the configurations; return how good each is, None if it did not finish."""
        rows = {name(one): one for one in batch}
        configurations.update(rows)
        table = as_table(file, configurations.values())
        todo = [cell for cell in tables.cells(table) if cell.row in rows]
        runner.run(todo, partial(prune, todo, folder) if file.prune else lambda _: None)
        filled = tables.collect(table, folder)
        sign = -1 if (file.better or filled.better_in.get(COLUMN)) == "lower" else 1
        means = {row: _mean(filled, row, len(file.seeds)) for row in rows}
        goodness.update({row: mean and sign * mean for row, mean in means.items()})
        return [goodness[name(one)] for one in batch]  # Optuna may propose one twice

    if file.search == "optuna":
        optimise(file, score)
    else:
        score(planned(file))
    table, unfinished = as_table(file, configurations.values()), Unfinished(folder)
    complete = {row: value for row, value in goodness.items() if value is not None}
    best = max(complete, key=complete.__getitem__) if complete else None
    ended = [cell for cell in tables.cells(table) if cell.fingerprint in unfinished]
    why = {cell.row: unfinished[cell.fingerprint] for cell in ended}
    return Result(table, tables.collect(table, folder), configurations, best, why)


def _check_measured(cell: CellRun, folder: Path) -> None:
    """Raise ``ValueError`` if a finished run has no number of the measure, since none will."""
    record = tables.recorded([cell], folder).get(cell.fingerprint)
    if record is not None and cell.value(record) is None:
        known = nearest(cell.measure, record.measures())
        raise ValueError(f'measure = "{cell.measure}" is no number of this run{known}')


def _mean(filled: Comparison, row: str, seeds: int) -> float | None:
    """Return a row's mean if all of its seeds have a finite number."""
    values = filled.cell(row, COLUMN).values
    whole = len(values) == seeds and all(map(math.isfinite, values))
    return statistics.fmean(values) if whole else None


def prune(peers: Sequence[CellRun], folder: Path, running: Sequence[Running]) -> None:
    """End runs whose score is below the median of the finished ``peers`` with the same seed."""
    known = records.read(folder)
    for one in running:
        t, score = _latest(one.place)
        same = [c.fingerprint for c in peers if c.seed == one.cell.seed]
        courses = [dict(known[name].course("primary")) for name in same if name in known]
        others = [course[t] for course in courses if t in course]
        if t < GRACE * int(one.cell.flat["rounds"]) or len(others) < PEERS or score is None:
            continue
        middle = statistics.median(others)
        measure = next(known[name].primary_measure for name in same if name in known)
        if measure.better(middle, score) and not one.stopped:
            mine, median = (measure.text(x).replace(" %", "%") for x in (score, middle))
            one.stop(f"ended in round {t}, {mine}; the others' median is {median}")


def _latest(place: Path) -> tuple[int, float | None]:
    """Return the last scored round of a running cell, and its primary score."""
    if not (place / reading.JOURNAL).exists():
        return 0, None
    scored = [e for e in reading.read(place).entries if e.round and e.primary_score is not None]
    return (scored[-1].round, scored[-1].primary_score) if scored else (0, None)


def chosen(file: SweepFile, found: Result) -> str:
    """Return the experiment file of the best configuration, which trains on all samples."""
    assert found.best is not None
    flat = {key: value for key, value in file.fixed().items() if key not in VALIDATION}
    score = found.filled.ours(found.best, COLUMN)
    tried = f"best of {len(found.configurations)} configurations on validation samples"
    head = f"# {file.title}: {tried}, {score} {found.filled.unit}".rstrip() + "\n"
    return head + to_toml(flat | found.configurations[found.best])


def write(file: SweepFile, found: Result, folder: Path, stem: str, beside: Path) -> list[Path]:
    """Write the table and its file, a picture of the space, and the chosen configuration.

    ``beside``: the folder of the sweep's file, whose modules are copied.
    """
    for named in file.named():
        UserModules.of({**named, "plugins": str(beside)}).copy(folder)
    written = tables.write(found.filled, found.file, folder, stem)
    texts = {f"{stem}.toml": tables.as_toml(found.file)}
    if found.best is not None:
        texts[CHOSEN] = chosen(file, found)
    picture(found, list(file.space), folder / f"{stem}-space.png")
    return [*written, folder / f"{stem}-space.png", *write_all(folder, texts)]


def picture(found: Result, keys: Sequence[str], path: Path) -> None:
    """Draw a panel for each setting: the mean score of each configuration against its value."""
    title = f"{clean(found.filled.title)}; the diamond is the chosen configuration"
    with style():
        figure, axes = panels(len(keys), title, (3.4, 2.9), (0.6, 0.6), 34)
        for place, key in zip(axes, keys, strict=True):
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
        save(figure, path)
