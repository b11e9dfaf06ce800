"""Test the papers' claims on recorded runs: a claim holds, does not hold, or is undecided.

``deploy/experiments/claims/`` has a file for each paper: one ``[[claim]]`` for each sentence of its
abstract and conclusion that a measurement can decide. A claim names the recorded tables that decide
it, and the comparison there; the verdict follows from a rule (``decide``), not from judgement.

A claim is a region of the real line: "a above b" is everything above 0, "comparable" is a margin
around 0, "by 150 %" is a stated range. Two rows give one number for each seed. The claim holds if
the 95 % interval of their mean (Student's t) lies inside the region, does not hold if it lies
outside, and is undecided otherwise. The first five seeds decide; if they do not, the first ten do.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import stdtr

from deploy.report.groups import LEVEL, half_width
from deploy.run.settings import EXPERIMENTS, checked, read_toml
from deploy.study import paper_table
from deploy.study.paper_table import Comparison, TableFile

SEEDS, EXTENDED = 5, 10
CLAIMS, RESULTS = EXPERIMENTS / "claims", EXPERIMENTS / "results"
STRICT = ConfigDict(extra="forbid", frozen=True)


class Verdict(StrEnum):
    """The result of a claim's tests on recorded runs."""

    HOLDS = "holds here"
    OPPOSITE = "does not hold here"
    UNDECIDED = "undecided"
    OUT_OF_REACH = "out of reach"


@final
@dataclass(frozen=True)
class Region:
    """The open interval ``low`` < x < ``high``; either bound may be infinite."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"the range [{self.low:g}, {self.high:g}] is empty")


@final
@dataclass(frozen=True)
class Decision:
    """The result of one test: ``mean`` ± ``interval`` over ``seeds`` paired numbers.

    ``mean`` is None without numbers, ``interval`` below two. ``p``: the smallest α at which the
    1 − α interval gives a verdict, so that p < 0.05 is the verdict at 95 %; None with fewer than
    five seeds, which decide nothing.
    """

    seeds: int
    mean: float | None
    interval: float | None
    p: float | None
    verdict: Verdict


def decide(numbers: Sequence[float], region: Region) -> Decision:
    """Return the decision on one number for each seed, in the order of the seeds.

    Raises ``ValueError`` for a number that is not finite.
    """
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a seed's number is not finite; its run may have missed a target")
    first = _decided(numbers[:SEEDS], region)
    if first.verdict is Verdict.UNDECIDED and len(numbers) >= EXTENDED:
        return _decided(numbers[:EXTENDED], region)
    return first


def _decided(numbers: Sequence[float], region: Region) -> Decision:
    n, half = len(numbers), half_width(numbers)
    mean = statistics.fmean(numbers) if numbers else None
    if mean is None or half is None or n < SEEDS:
        return Decision(n, mean, half, None, Verdict.UNDECIDED)
    error = statistics.stdev(numbers) / math.sqrt(n)
    inside = region.low < mean < region.high
    if inside:  # both ends of the region must be outside the interval
        p = max(_level(mean - region.low, error, n), _level(region.high - mean, error, n))
    else:
        p = _level(max(region.low - mean, mean - region.high), error, n)
    decided = Verdict.HOLDS if inside else Verdict.OPPOSITE
    return Decision(n, mean, half, p, decided if p < 1 - LEVEL else Verdict.UNDECIDED)


def _level(distance: float, error: float, n: int) -> float:
    """Return the α at which ``distance`` is half of the interval of n numbers."""
    if distance <= 0:
        return 1.0
    if error == 0 or math.isinf(distance):
        return 0.0
    return float(2 * stdtr(n - 1, -distance / error))


def holm(levels: Sequence[float | None], alpha: float = 1 - LEVEL) -> list[bool]:
    """Return for each test whether it stays decided when all are to be right at 1 − ``alpha``.

    ``levels``: each test's p; None counts as a test that was not made. Holm, A simple sequentially
    rejective multiple test procedure, 1979.
    """
    ordered = sorted((p, i) for i, p in enumerate(levels) if p is not None)
    kept = [False] * len(levels)
    for rank, (p, i) in enumerate(ordered):
        if p >= alpha / (len(ordered) - rank):
            break
        kept[i] = True
    return kept


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a sentence that claims several things together."""
    if not verdicts:
        return Verdict.UNDECIDED
    if Verdict.OPPOSITE in verdicts:
        return Verdict.OPPOSITE
    return Verdict.HOLDS if set(verdicts) == {Verdict.HOLDS} else Verdict.UNDECIDED


@final
class Test(BaseModel):
    """One comparison in a recorded table: ``above`` with each of ``below``, seed by seed."""

    model_config = STRICT

    table: str = Field(min_length=1)
    """Name of a table file; its record is the folder of that name."""
    above: str
    below: list[str] = Field(min_length=1)
    column: list[str] = Field(min_length=1)
    """Columns to compare; each is a separate test."""
    below_column: str = Field("", alias="below-column")
    """The column of ``below``, if it differs."""
    beyond: str = ""
    """Another column: its difference is subtracted."""
    better: Literal["higher", "lower"] = "higher"
    censored: float | None = None
    """Value for a target that was never reached: the first round after the run's last."""


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
    kind: Literal["order", "comparable", "size"] = "order"
    margin: float = Field(0.0, ge=0)
    """Largest difference that counts as ``comparable``, in the table's unit."""
    range: tuple[float, float] | None = None
    """Bounds of the difference under ``size``, in percent more than ``below``."""
    seen: bool = False
    """Whether the claim was written or changed after its runs were recorded, so that its sentence,
    tests and margin were not fixed beforehand."""
    needs: str = ""
    """Requirement of a decision that is not available here; such a claim is out of reach."""
    test: list[Test] = []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.kind == "size") != (self.range is not None):
            raise ValueError(f"{self.name}: kind = 'size' needs a range, and no other kind has one")
        if (self.kind == "comparable") != (self.margin > 0):
            raise ValueError(f"{self.name}: kind = 'comparable' needs a margin above 0")
        if bool(self.needs) == bool(self.test):
            raise ValueError(f"{self.name}: give either tests or 'needs', and not both")
        return self

    @property
    def region(self) -> Region:
        """The region in which the numbers of a test lie if the claim is true."""
        if self.range is not None:
            return Region(*self.range)
        return Region(-self.margin, self.margin) if self.margin else Region(0.0, math.inf)


@final
class Paper(BaseModel):
    """A file of claims from one paper."""

    model_config = STRICT

    paper: str
    source: str
    claim: list[Claim] = Field(min_length=1)


@final
@dataclass(frozen=True)
class Tested:
    """One test with its decision; ``kept``: decided also after Holm's correction over all tests."""

    table: str
    above: str
    below: str
    column: str
    decision: Decision
    kept: bool = False


@final
@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and its tests.

    ``stale``: tables whose canaries have changed, with the methods concerned.
    """

    paper: str
    claim: Claim
    verdict: Verdict
    tests: tuple[Tested, ...]
    stale: tuple[str, ...] = ()


def read(folder: Path = CLAIMS) -> list[Paper]:
    """Return the files of claims. Raises ``ValueError``, one line, for an invalid file."""
    papers = []
    for path in sorted(folder.glob("*.toml")):
        papers.append(checked(Paper, read_toml(path), path))
    names = [claim.name for paper in papers for claim in paper.claim]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{folder}: the claim {name} exists twice; rename one")
    if not papers:
        raise ValueError(f"{folder} has no files of claims")
    return papers


@final
class Records:
    """Recorded tables in a folder; each is read when it is first used."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder
        self._read: dict[str, tuple[TableFile, Comparison]] = {}

    def values(self, table: str, row: str, column: str) -> Sequence[float]:
        """Return a cell's numbers in the order of the seeds; ∞ for a target that was never reached.

        Empty unless the cell is recorded with all seeds of its row: the seeds of fewer numbers are
        unknown, so they cannot be paired. Raises ``ValueError`` for a row or column that the table
        lacks. Raises it also for a row whose seeds do not begin with the table's, because numbers
        are paired by position.
        """
        if table not in self._read:
            file = paper_table.read(Path(table))
            self._read[table] = file, paper_table.collect(file, self._folder / table)
        file, filled = self._read[table]
        for what, name, lines in (("row", row, file.row), ("column", column, file.column)):
            if name not in (names := [line.name for line in lines]):
                raise ValueError(f"{table} has no {what} {name!r}; it has {', '.join(names)}")
        seeds = next(line.seeds for line in file.row if line.name == row) or file.seeds
        if seeds[: len(file.seeds)] != file.seeds:
            raise ValueError(f"{table}: the seeds of {row!r} do not begin with {file.seeds}")
        values = filled.cell(row, column).values
        return values if len(values) == len(seeds) else ()


def tables(papers: list[Paper]) -> list[str]:
    """Return the names of the recorded tables that decide the claims."""
    names = (test.table for paper in papers for claim in paper.claim for test in claim.test)
    return list(dict.fromkeys(names))


def judge(papers: list[Paper], records: Records, stale: Mapping[str, str]) -> list[Judged]:
    """Return every claim with its verdict, in the files' order.

    ``stale``: table -> the methods whose canaries have changed.
    """
    tested = [
        (paper, claim, [*_tests(claim, records)]) for paper in papers for claim in paper.claim
    ]
    levels = [test.decision.p for _, _, tests in tested for test in tests]
    kept = iter(holm(levels))
    judged = []
    for paper, claim, tests in tested:
        final_tests = tuple(replace(t, kept=next(kept)) for t in tests)
        verdict = together([t.decision.verdict for t in tests])
        verdict = Verdict.OUT_OF_REACH if claim.needs else verdict
        old = dict.fromkeys(f"{t.table}: {stale[t.table]}" for t in tests if t.table in stale)
        judged.append(Judged(paper.paper, claim, verdict, final_tests, tuple(old)))
    return judged


def _tests(claim: Claim, records: Records) -> Iterator[Tested]:
    for test in claim.test:
        for column in test.column:
            for below in test.below:
                pairs = _paired(claim, test, records, below, column, test.below_column or column)
                label = f"{column} / {test.below_column}" if test.below_column else column
                if test.beyond:
                    others = _paired(claim, test, records, below, test.beyond, test.beyond)
                    pairs = [a - b for a, b in zip(pairs, others, strict=False)]
                    label += f" beyond {test.beyond}"
                decision = decide(pairs, claim.region)
                yield Tested(test.table, test.above, below, label, decision)


def _paired(
    claim: Claim, test: Test, records: Records, below: str, column: str, below_column: str
) -> list[float]:
    """Return one number for each seed that both cells have."""
    first = records.values(test.table, test.above, column)
    second = records.values(test.table, below, below_column)
    return [_number(claim, test, a, b) for a, b in zip(first, second, strict=False)]


def _number(claim: Claim, test: Test, above: float, below: float) -> float:
    """Return the number of one seed: a difference, or percent more."""
    a, b = (_censored(test, value) for value in (above, below))
    if claim.kind == "size":
        if b == 0:
            raise ValueError(f"{claim.name}: {test.table} has a 0, so there is no ratio to it")
        return 100 * (a / b - 1)
    return a - b if test.better == "higher" else b - a


def _censored(test: Test, value: float) -> float:
    if value < math.inf:
        return value
    if test.censored is None:
        raise ValueError(f"{test.table}: a target was never reached; the test needs 'censored'")
    return test.censored
