"""Scores, costs and ranks of the rows of the leaderboard, from its record."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from deploy.leaderboard.board import Board
from deploy.leaderboard.protocol import COSTS, Place, Protocol, column
from deploy.study import paper_table as tables
from deploy.study import records
from deploy.study.paper_table import CellRun
from deploy.study.records import Flat, Recorded
from deploy.study.runner import Unfinished

DRAWS = 2000  #: bootstrap samples
TRAFFIC = ("bytes.up", "bytes.down")  #: bytes of all clients
WORK = ("flops.clients", "flops.server")  #: operations of all clients and the server
GLOBAL, PERSONAL = "accuracy", "personal.accuracy"  #: curves of the two scores


@final
@dataclass(frozen=True)
class Rank:
    """Rank of a row among the rows of a section, by one score.

    A row is *better* than another if the bootstrap interval of the difference is above 0. In the
    order of the means, a group of rows ends before the first one than which the group's first row
    is better. ``rank``: 1 and the number of rows in earlier groups, the same for a whole group.
    ``best``, ``worst``: possible positions: 1 and the number of better rows, and the number of all
    rows without the worse ones. ``low``, ``high``: 95 % interval of the mean.
    """

    rank: int
    best: int
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
    order = [int(i) for i in np.argsort(-stacked.mean(axis=(1, 2)), kind="stable")]
    firsts = dict[int, int]()  # place of the group's first row, by row
    for at, i in enumerate(order):
        first = firsts[order[at - 1]] if at else 0
        firsts[i] = at if better[i, order[first]] else first
    out = dict[str, Rank]()
    for i, name in enumerate(values):
        low, high = np.quantile(means[i], (0.025, 0.975))
        best, worst = 1 + int(better[i].sum()), len(means) - int(better[:, i].sum())
        out[name] = Rank(1 + firsts[i], best, worst, float(low), float(high))
    return out


def at_cost(record: Recorded, score: str, costs: Sequence[float], limit: float) -> float | None:
    """Return the last score before the cumulative ``costs`` of the rounds exceed ``limit``.

    ``costs``: a number for each entry of the curve, the census first. None if no scored round is
    within the limit.
    """
    total, value = 0.0, None
    for cost, scored_value in zip(costs, record.curve.get(score, []), strict=False):
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

    @property
    def rankable(self) -> bool:
        """Whether the row is complete and federated."""
        return self.complete and self.place.row.ranked


@final
@dataclass(frozen=True)
class Section:
    """The rows of one fleet with one skew. The complete rows have ranks among themselves."""

    fleet: str
    skew: str
    standings: Sequence[Standing]
    protocol: Protocol

    @property
    def ranked(self) -> Sequence[Standing]:
        """The rows with a rank."""
        return [one for one in self.standings if one.ranks]


def sections(board: Board) -> Iterator[Section]:
    """Yield a section for each fleet and skew, with the ranks of its complete rows.

    Centralised training and rows that did not finish have no rank. One-shot methods are ranked
    among themselves.
    """
    by_row: dict[str, list[CellRun]] = {}
    for cell in tables.cells(board.board()):
        by_row.setdefault(cell.row, []).append(cell)
    recorded, unfinished = records.read(board.folder), Unfinished(board.folder)
    for fleet, skew in itertools.product(board.protocol.fleet, board.protocol.skew):
        standings = [
            _standing(board, place, skew, by_row.get(place.name, []), recorded, unfinished)
            for place in board.places
            if place.fleet == fleet
        ]
        section = Section(fleet, skew, standings, board.protocol)
        for score, one_shot in itertools.product((GLOBAL, PERSONAL), (False, True)):
            alike = [one for one in standings if one.place.one_shot == one_shot]
            kept = [one for one in alike if one.rankable and score in one.grid]
            found = ranks({s.place.name: s.grid[score] for s in kept})
            for one in kept:
                one.ranks[score] = found[one.place.name]
        yield section


def _standing(
    board: Board,
    place: Place,
    skew: str,
    cells: Sequence[CellRun],
    recorded: Mapping[str, Recorded],
    unfinished: Unfinished,
) -> Standing:
    protocol = board.protocol
    by_key = {(cell.column, cell.seed): cell for cell in cells}
    wanted = [(column(skew, p), seed) for p in protocol.partitions for seed in protocol.seeds]
    known, missing, failed = dict[tuple[str, int], Recorded](), list[str](), list[str]()
    if not cells:
        none = "no configuration has finished"
        failed += [none] if place.name in board.hopeless else []
        missing += [] if failed else ["no configuration is chosen yet"]
    for key in [*wanted, (COSTS, protocol.seeds[0])] if cells else ():
        cell = by_key[key]
        if (record := recorded.get(cell.fingerprint)) is not None:
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
        by_bytes = [
            at_cost(run, curve, _spent(run, TRAFFIC), protocol.budget.bytes) for run in runs
        ]
        values[f"{score} at bytes"] = _mean(by_bytes)
        if measured is not None:
            work = _spent(measured, WORK)
            by_flops = [at_cost(run, curve, work, protocol.budget.flops) for run in runs]
            values[f"{score} at flops"] = _mean(by_flops)
    values["worst"] = _mean([run.measured("personal.worst") for run in runs])
    rounds = max((t or 0 for run in runs for t in run.curve.get("round", [])), default=0)
    sent = _mean([sum(_spent(run, TRAFFIC)) for run in runs])
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


def _spent(record: Recorded, curves: Sequence[str]) -> list[float]:
    """Return the sum of the ``curves`` in each round, the census first."""
    courses = (record.curve.get(curve, []) for curve in curves)
    return [sum(x or 0 for x in costs) for costs in itertools.zip_longest(*courses, fillvalue=0)]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there are no values or one is missing."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known and len(known) == len(values) else None
