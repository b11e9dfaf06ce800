"""Judge the papers' claims by recorded runs, with five verdicts that follow from a rule.

``tests/papers/claims/`` has a file for each paper: one ``[[claim]]`` for each sentence of its
abstract, contributions and conclusion that a measurement can decide. A claim names the recorded
tables that decide it and the fair conditions of a test; ``_judged`` is the rule.

A comparison gives one number for each seed. A claim is a region of the real line: "a above b" is
everything above 0, "comparable" is a margin around 0, "at least 150 %" is a range. A comparison is
as claimed if the 95 % interval of the mean (Student's t) lies inside the region, against the claim
if it lies outside, and open otherwise. A sentence about several comparisons is judged by all of
them together (Holm, A simple sequentially rejective multiple test procedure, 1979).

Effects are relative error reductions, so that ours and the paper's have one scale: with the error
e = 100 − accuracy in %, or the cost itself, (mean e of b − mean e of a) / mean e of b, in %.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import stdtr, stdtrit

from common.parse import reads
from deploy.report.groups import LEVEL, half_width, holm
from deploy.settings import checked, read_toml
from deploy.study import paper_table
from deploy.study.comparison import Comparison
from deploy.study.paper_table import CellRun, TableFile
from tests.papers import CLAIMS, RESULTS, place

SEEDS = 5  #: fewest seeds that decide
POWER = 0.8  #: probability of finding an effect of the minimum detectable size
STRICT = ConfigDict(extra="forbid", frozen=True)


class Verdict(StrEnum):
    """The result of a claim's tests on recorded runs."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNFAIR = "not tested at a fair scale"
    NO_POWER = "no power"
    FLAWED = "the paper contradicts itself"


class Side(StrEnum):
    """Where the interval of one comparison lies."""

    CLAIMED = "as claimed"
    AGAINST = "against"
    OPEN = "open"


class Region(NamedTuple):
    """The open interval ``low`` < x < ``high``; either bound may be infinite."""

    low: float
    high: float


@final
@dataclass(frozen=True)
class Decision:
    """The result of one comparison: ``mean`` ± ``interval`` over ``seeds`` paired numbers.

    ``mean`` is None without numbers, ``interval`` below two. ``p``: the smallest α at which the
    1 − α interval leaves a bound of the region out, so that p < 0.05 is a side at 95 %; None with
    fewer than five seeds, which decide nothing.
    """

    seeds: int
    mean: float | None
    interval: float | None
    p: float | None
    side: Side


def decide(numbers: Sequence[float], region: Region) -> Decision:
    """Return the decision on one number for each seed.

    Raises ``ValueError`` for a number that is not finite.
    """
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a seed's number is not finite; its run may have missed a target")
    n, half = len(numbers), half_width(numbers)
    mean = statistics.fmean(numbers) if numbers else None
    if mean is None or half is None or n < SEEDS:
        return Decision(n, mean, half, None, Side.OPEN)
    error = statistics.stdev(numbers) / math.sqrt(n)
    inside = region.low < mean < region.high
    if inside:  # both ends of the region must be outside the interval
        p = max(_level(mean - region.low, error, n), _level(region.high - mean, error, n))
    else:
        p = _level(max(region.low - mean, mean - region.high), error, n)
    side = Side.CLAIMED if inside else Side.AGAINST
    return Decision(n, mean, half, p, side if p < 1 - LEVEL else Side.OPEN)


def _level(distance: float, error: float, n: int) -> float:
    """Return the α at which ``distance`` is half of the interval of n numbers."""
    if distance <= 0:
        return 1.0
    if error == 0 or math.isinf(distance):
        return 0.0
    return float(2 * stdtr(n - 1, -distance / error))


def detectable(half: float, n: int) -> float:
    """Return the minimum detectable effect of n numbers whose 95 % interval has the ``half`` width.

    An effect of this size lies outside the interval with a probability of 80 %:
    (t(0.975) + t(0.8)) · s / √n, quantiles of Student's t with n − 1 degrees of freedom.
    """
    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    return half * (1 + float(stdtrit(n - 1, POWER)) / t)


@final
class Test(BaseModel):
    """One comparison in a recorded table: ``above`` with each of ``below``, seed by seed."""

    model_config = STRICT

    table: str = Field(min_length=1)
    """Name of a table file; its record is the folder of that name."""
    above: str
    below: list[str] = Field(min_length=1)
    column: list[str] = Field(min_length=1)
    """Columns to compare; each is a separate comparison."""
    below_column: str = Field("", alias="below-column")
    """The column of ``below``, if it differs."""
    beyond: str = ""
    """Another column: its difference is subtracted."""
    over: str = ""
    """Under ``size``: the row whose number is the denominator, if that is not ``below``."""
    better: Literal["higher", "lower"] = "higher"
    """``higher``: scores; ``lower``: errors and costs."""
    best: float = 100.0
    """The highest score in the table's unit: 100 for percent, 1 for an R² or AUC."""
    censored: float | None = None
    """Value for a target that was never reached: the first round after the run's last."""
    reached: str = ""
    """For a cost: the column with the round in which ``below`` reaches the accuracy of ``above``.
    The cost of ``below`` counts up to that round, so that costs are compared at equal accuracy."""
    accuracy: str = ""
    """For a cost: the column of accuracies. A comparison is unfair if ``above`` is less accurate
    than ``below``."""
    paper: dict[str, float] = {}
    """The paper's numbers by row; default: the table's expected numbers."""


@final
class Claim(BaseModel):
    """One sentence of a paper that a measurement can decide."""

    model_config = STRICT

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    section: str
    says: str
    """The sentence, in our words."""
    number: str = ""
    """The number in the paper."""
    reading: str = ""
    """The reading of the sentence that is tested, where several are possible."""
    kind: Literal["order", "comparable", "size"] = "order"
    margin: float = Field(0.0, ge=0)
    """Largest difference that counts as ``comparable``, in the table's unit."""
    range: tuple[float, float] | None = None
    """Bounds of the difference under ``size``, in percent more than ``below``; ``inf`` for "at
    least", ``-inf`` for "at most"."""
    fair: dict[str, float | str] = {}
    """Fair conditions of a test. A number is the least value of a setting of both rows, a text the
    possible beginnings of each part of its value, ``a|b``; ``below.NAME`` is a setting of ``below``
    only. ``room``: least mean error of ``below``
    in %; ``server-steps``: rounds · noise.epochs · noise.batches; ``architectures``: the number of
    different ones in the fleet. A row without the setting meets the condition."""
    seen: bool = False
    """Whether the claim was written or changed after its runs were recorded, so that its sentence,
    tests and margin were not fixed beforehand."""
    before: str = ""
    """What a changed claim said, tested and resulted in before."""
    needs: str = ""
    """Requirement of a fair test that is not available here."""
    flaw: str = ""
    """Why the paper contradicts itself, or why its sentence as printed cannot be."""
    test: list[Test] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.kind == "size") != (self.range is not None):
            raise ValueError(f"{self.name}: kind = 'size' needs a range, and no other kind has one")
        if (self.kind == "comparable") != (self.margin > 0):
            raise ValueError(f"{self.name}: kind = 'comparable' needs a margin above 0")
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"{self.name}: range = {list(self.range)} is empty")
        if bool(self.needs) == bool(self.test) and not self.flaw:
            raise ValueError(f"{self.name}: give either tests or 'needs', and not both")
        return self

    @property
    def changed(self) -> bool:
        """Whether the claim was not fixed before its runs."""
        return self.seen or bool(self.before)

    @property
    def region(self) -> Region:
        """The region in which the numbers of a test lie if the claim is true."""
        if self.range is not None:
            return Region(*self.range)
        return Region(-self.margin, self.margin) if self.margin else Region(0.0, math.inf)


@final
class Paper(BaseModel):
    """A file of claims from one paper, with a summary of three sentences."""

    model_config = STRICT

    paper: str
    source: str
    ran: str
    differs: str
    conclusion: str
    records: list[str] = []
    """Further records of the paper's methods, which decide no claim."""
    claim: list[Claim] = Field(min_length=1)

    @property
    def tables(self) -> list[str]:
        """The records that decide the claims, then the others."""
        of_claims = [test.table for claim in self.claim for test in claim.test]
        return list(dict.fromkeys([*of_claims, *self.records]))


@final
@dataclass(frozen=True)
class Tested:
    """One comparison with its decision.

    ``effect`` ± ``width`` is the relative error reduction in %, ``mde`` the minimum detectable one,
    ``paper`` the paper's. ``unfair``: the fair condition that the comparison does not meet.
    ``weak``: the interval is wider than half of the paper's effect. ``kept``: the side also remains
    after Holm's correction over the claim's comparisons that can decide.
    """

    table: str
    above: str
    below: str
    column: str
    decision: Decision
    effect: float | None
    width: float | None
    mde: float | None
    paper: float | None
    unfair: str
    weak: bool
    kept: bool = False

    @property
    def decides(self) -> bool:
        return not self.unfair and not self.weak


@final
@dataclass(frozen=True)
class Judged:
    """A claim, its verdict with the reason in one sentence, and its comparisons.

    ``stale``: tables whose canaries have changed, with the methods concerned.
    """

    claim: Claim
    verdict: Verdict
    reason: str
    tests: tuple[Tested, ...]
    stale: tuple[str, ...] = ()


def read(folder: Path = CLAIMS) -> list[Paper]:
    """Return the files of claims. Raises ``ValueError``, one line, for an invalid file."""
    paths = sorted(folder.glob("*.toml"))
    papers = [checked(Paper, read_toml(path), path) for path in paths]
    names = [claim.name for paper in papers for claim in paper.claim]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{folder}: the claim {name} exists twice; rename one")
    if not papers:
        raise ValueError(f"{folder} has no files of claims")
    return papers


_Read = tuple[TableFile, Comparison, Mapping[tuple[str, str], CellRun]]


@final
class Records:
    """Recorded tables in a folder; each is read when it is first used."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder
        self._read: dict[str, _Read] = {}

    def _table(self, table: str) -> _Read:
        if table not in self._read:
            file = paper_table.read(place(table))
            cells = {(cell.row, cell.column): cell for cell in paper_table.cells(file)}
            self._read[table] = file, paper_table.collect(file, self._folder / table), cells
        return self._read[table]

    def values(self, table: str, row: str, column: str) -> Sequence[float]:
        """Return a cell's numbers in the order of the seeds; ∞ for a target that was never reached.

        Empty unless the cell is recorded with all seeds of its row: the seeds of fewer numbers are
        unknown, so they cannot be paired. Raises ``ValueError`` for a row or column that the table
        lacks. Raises it also for a row whose seeds do not begin with the table's, because numbers
        are paired by position.
        """
        file, filled, _ = self._table(table)
        for what, name, lines in (("row", row, file.row), ("column", column, file.column)):
            if name not in (names := [line.name for line in lines]):
                raise ValueError(f"{table} has no {what} {name!r}; it has {', '.join(names)}")
        its_row, its_column = (
            next(line for line in lines if line.name == name)
            for name, lines in ((row, file.row), (column, file.column))
        )
        seeds = file.seeds_of(its_row, its_column)
        if seeds[: len(file.seeds)] != file.seeds:
            raise ValueError(f"{table}: the seeds of {row!r} do not begin with {file.seeds}")
        values = filled.cell(row, column).values
        return values if len(values) == len(seeds) else ()

    def expected(self, table: str, row: str, column: str) -> float | None:
        """Return the paper's number of a cell; None if the table has none."""
        return self._table(table)[1].cell(row, column).expected

    def setting(self, table: str, row: str, column: str, name: str) -> float | str | None:
        """Return a setting of a cell's runs, or a name of ``Claim.fair``; None if it has none."""
        flat = self._table(table)[2][row, column].flat
        flat = {key: v for key, v in flat.items() if reads(str(flat["method"]), key)}
        if name == "architectures":
            return float(len(set(str(flat["fleet"]).split(","))))
        if name == "server-steps":
            steps = [flat.get(key) for key in ("rounds", "noise.epochs", "noise.batches")]
            return None if None in steps else math.prod(float(str(step)) for step in steps)
        value = flat.get(name)
        return float(value) if isinstance(value, int | float) else value


def tables(papers: list[Paper]) -> list[str]:
    """Return the names of the recorded tables that decide the claims."""
    names = (test.table for paper in papers for claim in paper.claim for test in claim.test)
    return list(dict.fromkeys(names))


def judge(
    papers: Sequence[Paper], records: Records, stale: Mapping[str, str]
) -> list[tuple[Paper, list[Judged]]]:
    """Return every paper with its claims and their verdicts, in the files' order.

    ``stale``: table -> the methods whose canaries have changed.
    """
    return [(paper, [_judge(claim, records, stale) for claim in paper.claim]) for paper in papers]


def _judge(claim: Claim, records: Records, stale: Mapping[str, str]) -> Judged:
    tests = [
        _Compared(claim, test, records, below, column).tested()
        for test in claim.test
        for column in test.column
        for below in test.below
    ]
    kept = holm([test.decision.p if test.decides else None for test in tests])
    tests = [replace(t, kept=k) for t, k in zip(tests, kept, strict=True)]
    old = dict.fromkeys(f"{t.table}: {stale[t.table]}" for t in tests if t.table in stale)
    return Judged(claim, *_judged(claim, tests), tuple(tests), tuple(old))


def _judged(claim: Claim, tests: Sequence[Tested]) -> tuple[Verdict, str]:
    """Return a claim's verdict and its reason.

    Comparisons that do not meet the fair conditions decide nothing. Of the others, one against the
    claim contradicts it, and all as claimed reproduce it; both have to remain after Holm.
    """
    if claim.flaw:
        return Verdict.FLAWED, claim.flaw
    fair = [test for test in tests if not test.unfair]
    if not fair:
        reasons = dict.fromkeys(test.unfair for test in tests)
        return Verdict.UNFAIR, claim.needs or "; ".join(list(reasons)[:2])
    against = [t for t in fair if t.kept and t.decision.side is Side.AGAINST]
    claimed = [t for t in fair if t.kept and t.decision.side is Side.CLAIMED]
    weak, unfair = sum(test.weak for test in fair), len(tests) - len(fair)
    reason = f"{len(claimed)} of {len(fair)} comparisons as claimed, {len(against)} against"
    reason += f", {weak} with intervals wider than half of the paper's effect" if weak else ""
    reason += f"; {unfair} more not at a fair scale" if unfair else ""
    if against:
        return Verdict.CONTRADICTED, reason
    return Verdict.REPRODUCED if len(claimed) == len(fair) else Verdict.NO_POWER, reason


@final
@dataclass(frozen=True)
class _Compared:
    """``test.above`` in ``column`` against one row ``below``; both are in recorded tables."""

    claim: Claim
    test: Test
    records: Records
    below: str
    column: str

    @property
    def cells(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """(row, column) of both numbers."""
        return (self.test.above, self.column), (self.below, self.test.below_column or self.column)

    def tested(self) -> Tested:
        test, kind, gains, paper = self.test, self.claim.kind, self.gains(), self.paper()
        mean, half = statistics.fmean(self.errors() or [0.0]), half_width(gains)
        effect = width = mde = None
        if mean and half is not None:
            effect, width = 100 * statistics.fmean(gains) / mean, 100 * half / mean
            mde = detectable(width, len(gains))
        gated = kind == "order" and test.better == "higher" and paper is not None
        weak = gated and 2 * (width or 0.0) > abs(paper or 0.0) / 2
        label = f"{self.column} / {test.below_column}" if test.below_column else self.column
        label += f" beyond {test.beyond}" if test.beyond else ""
        decision = decide(self.percent() if kind == "size" else gains, self.claim.region)
        names = (test.table, test.above, self.below, label)
        return Tested(*names, decision, effect, width, mde, paper, self.unfair(), weak)

    def gains(self) -> list[float]:
        """Return for each seed how much better ``above`` is, in the table's unit."""
        sign = 1 if self.test.better == "higher" else -1
        gains = [sign * (a - b) for a, b in self.pairs()]
        if not self.test.beyond:
            return gains
        beyond = [sign * (a - b) for a, b in self.raw(self.test.beyond, self.test.beyond)]
        return [gain - other for gain, other in zip(gains, beyond, strict=False)]

    def errors(self) -> list[float]:
        """Return for each seed the error of which an effect is a share."""
        if self.test.over:
            return list(self.records.values(self.test.table, self.test.over, self.column))
        return [self.error(b) for _, b in self.pairs()]

    def error(self, value: float) -> float:
        """Return what a score lacks of the highest one, or the cost itself."""
        return self.test.best - value if self.test.better == "higher" else value

    def percent(self) -> list[float]:
        """Return for each seed how many percent more ``above`` is."""
        pairs = self.pairs()
        over = self.errors() if self.test.over else [b for _, b in pairs]
        if 0 in over:
            name, table = self.claim.name, self.test.table
            raise ValueError(f"{name}: {table} has a 0, so there is no ratio to it")
        return [100 * (a - b) / c for (a, b), c in zip(pairs, over, strict=False)]

    def paper(self) -> float | None:
        """Return the paper's relative error reduction in %; None if it prints no numbers."""
        printed = [
            self.test.paper.get(row, self.records.expected(self.test.table, row, column))
            for row, column in self.cells
        ]
        a, b = (None if value is None else self.error(value) for value in printed)
        return 100 * (b - a) / b if a is not None and b and not self.test.beyond else None

    def unfair(self) -> str:
        """Return the first fair condition that is not met; an empty text if all are."""
        table, where = self.test.table, f"in {self.test.table}"
        if not all(self.records.values(table, *cell) for cell in self.cells):
            return f"{table} is not recorded with all of its seeds"
        for name, least in self.claim.fair.items():
            key = name.removeprefix("below.")
            cells = self.cells[key != name :]
            values = [self.records.setting(table, *cell, key) for cell in cells]
            if key == "room":
                values = [statistics.fmean(self.errors())] if self.test.better == "higher" else []
            elif set(values) == {None}:
                raise ValueError(f"{self.claim.name}: no row of {table} has the setting {key!r}")
            for value in values:
                if not _meets(value, least):
                    shown, fair = (x if isinstance(x, str) else f"{x:g}" for x in (value, least))
                    return f"{key} is {shown} {where}, fair is {fair}"
        if self.test.accuracy:
            accuracies = self.raw(self.test.accuracy, self.test.accuracy)
            if decide([a - b for a, b in accuracies], Region(0.0, math.inf)).side is Side.AGAINST:
                return f"{self.test.above} is less accurate than {self.below} {where}"
        if not self.pairs():
            return (
                f"{self.below} ends below the accuracy of {self.test.above}, and cheaper, {where}"
            )
        return ""

    def pairs(self) -> list[tuple[float, float]]:
        """Return both numbers of each seed; a cost up to equal accuracy if that is asked for.

        Empty if a run ends below the accuracy and its cost is no upper bound of the other's.
        """
        pairs = self.raw(*(column for _, column in self.cells))
        if not self.test.reached or not pairs:
            return pairs
        rounds = self.records.setting(self.test.table, *self.cells[1], "rounds")
        assert isinstance(rounds, float)
        reached = self.records.values(self.test.table, self.below, self.test.reached)
        shares = [min(t, rounds) / rounds for t in reached]
        pairs = [(a, b * share) for (a, b), share in zip(pairs, shares, strict=False)]
        # the whole cost of a run that never reaches the accuracy is a lower bound of what it takes
        never = [math.isinf(t) and b <= a for t, (a, b) in zip(reached, pairs, strict=False)]
        return [] if any(never) else pairs

    def raw(self, column: str, below_column: str) -> list[tuple[float, float]]:
        """Return the numbers of both rows for each seed that both cells have."""
        first = self.records.values(self.test.table, self.test.above, column)
        second = self.records.values(self.test.table, self.below, below_column)
        return [(self.number(a), self.number(b)) for a, b in zip(first, second, strict=False)]

    def number(self, value: float) -> float:
        if value < math.inf:
            return value
        if self.test.censored is None:
            table = self.test.table
            raise ValueError(f"{table}: a target was never reached; the test needs 'censored'")
        return self.test.censored


def _meets(value: float | str | None, least: float | str) -> bool:
    """Return whether a setting is at least a number, or its parts begin as a text allows."""
    if isinstance(value, str):
        return all(part.startswith(tuple(str(least).split("|"))) for part in value.split(","))
    return value is None or value >= float(least)
