"""Scores, costs and possible positions of the rows of the leaderboard, from its record."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from deploy.leaderboard.board import Board
from deploy.leaderboard.inference import Difference, Position, differences, positions
from deploy.leaderboard.protocol import (
    COSTS,
    LIMITS,
    PERSONAL,
    PROTOTYPE,
    Pair,
    Place,
    Protocol,
    column,
)
from deploy.study import paper_table as tables
from deploy.study import records
from deploy.study.paper_table import CellRun
from deploy.study.records import Flat, Recorded
from deploy.study.runner import Unfinished

GLOBAL = "accuracy"  #: curve of the global score


def at_cost(record: Recorded, score: str, spent: Sequence[float], limit: float) -> float | None:
    """Return the last score of a round at whose end no more than ``limit`` is spent.

    ``spent``: the cost since the start of the run for each entry of the curve, the census first.
    None if no scored round is within the limit.
    """
    value = None
    for cost, scored_value in zip(spent, record.curve.get(score, []), strict=False):
        if cost > limit:
            break
        value = scored_value if scored_value is not None else value
    return value


@final
@dataclass(frozen=True)
class Standing:
    """A row in a section: numbers are means over partitions and seeds, None if unknown.

    ``grid``: by score, the row's accuracies in independent repetitions (``positions``).
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
    for_global: bool = False
    """Whether the clients keep own networks and the configuration is chosen by the global score."""
    positions: dict[str, Position] = field(default_factory=dict)

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
    """The rows of one fleet with one skew. The complete ones have positions among themselves."""

    fleet: str
    skew: str
    standings: Sequence[Standing]
    protocol: Protocol

    @property
    def ranked(self) -> Sequence[Standing]:
        """The rows with positions."""
        return [one for one in self.standings if one.positions]


def sections(board: Board) -> Iterator[Section]:
    """Yield a section for each fleet and skew, with the positions of its complete rows.

    Centralised training and rows that did not finish have none. One-shot methods have positions
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
            found = positions({s.place.name: s.grid[score] for s in kept})
            for one in kept:
                one.positions[score] = found[one.place.name]
        yield section


@final
@dataclass(frozen=True)
class Compared:
    """A named pair of the protocol with one skew."""

    pair: Pair
    skew: str
    difference: Difference


def compared(found: Sequence[Section]) -> list[Compared]:
    """Return the differences of the protocol's pairs of which both rows are complete."""
    pairs, values = list[tuple[Pair, str]](), list[np.ndarray]()
    for section in found:
        grids = {one.place.row.name: one.grid for one in section.standings if one.rankable}
        for pair in section.protocol.pair:
            score = PERSONAL if pair.score == "personal" else GLOBAL
            first, second = (grids.get(name, {}).get(score) for name in (pair.row, pair.other))
            if pair.fleet == section.fleet and first is not None and second is not None:
                pairs.append((pair, section.skew))
                values.append(first - second)
    both = zip(pairs, differences(values), strict=True)
    return [Compared(*pair, difference) for pair, difference in both]


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
    wanted = [(column(skew, p), seed) for p, seed in protocol.runs]
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
    for score, curve in _curves(protocol, place).items():
        last = [run.last(curve) for run in runs]
        values[score] = _mean(last)
        if len(runs) == len(wanted) and None not in last:
            repetitions = len(protocol.runs) if protocol.paired else len(protocol.seeds)
            grid[score] = np.array(last, dtype=float).reshape(-1, repetitions).mean(axis=0)
        for name, most in protocol.budget.limits.items():
            limit = LIMITS[name]
            counters = [measured if limit.counted else run for run in runs]
            spent = [counter.spent(limit.cost) if counter else [] for counter in counters]
            pairs = zip(runs, spent, strict=True)
            within = [at_cost(run, curve, costs, most) for run, costs in pairs]
            values[f"{score} at {name}"] = _mean(within)
    if not place.row.personal and all(PROTOTYPE in run.curve for run in runs):
        values["by prototypes"] = _mean([run.last(PROTOTYPE) for run in runs])
    worst = "fairness.prototype.wlp" if place.row.personal == PROTOTYPE else "personal.worst"
    values["worst"] = _mean([run.measured(worst) for run in runs])
    rounds = max((t or 0 for run in runs for t in run.curve.get("round", [])), default=0)
    sent = _mean([max(run.spent("bytes"), default=0) for run in runs])
    values["bytes a round"] = None if sent is None or not rounds else sent / rounds
    if measured is not None:
        values["flops"] = measured.measured("flops.total")
        values["memory"] = measured.measured("memory.largest")
    configuration = board.chosen.get(place.name, {})
    given_up = board.given_up.get(place.name, [])
    for_global = place.has_own and not place.row.personal and not all(r.personal for r in runs)
    return Standing(place, values, grid, missing, failed, configuration, given_up, for_global)


def _curves(protocol: Protocol, place: Place) -> dict[str, str]:
    """Return the curves of the row's scores, by score."""
    if place.row.personal:
        return {PERSONAL: place.row.personal}
    largest = f"accuracies.{protocol.fleet[place.fleet].largest}"
    return {GLOBAL: largest if place.row.largest else GLOBAL, PERSONAL: PERSONAL}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there are no values or one is missing."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known and len(known) == len(values) else None
