"""A small table, and a small leaderboard with made records."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deploy.leaderboard.board import Board
from deploy.leaderboard.protocol import Protocol
from deploy.study import paper_table, records
from deploy.study.paper_table import CellRun
from deploy.study.records import Recorded

TABLE = """
title = "A table"
seeds = [1, 2, 3, 4, 5]
[base]
clients = 2
rounds = 3
fleet = "mlp@0.25"
data = { name = "toy", samples = 120, test-samples = 60, partition = "iid" }
train = { epochs = 2 }
[[row]]
name = "A"
set = { method = "fedavg" }
[[row]]
name = "B"
set = { method = "fedprox" }
[[column]]
name = "C"
[[column]]
name = "rounds"
"""
"""A table of two methods on the data set ``toy``; a cell takes a fraction of a second."""

SMALL: dict[str, Any] = {
    "name": "points",
    "version": 7,
    "title": "Points",
    "seeds": [1, 2],
    "partitions": [5, 6],
    "skew": {"α = 0.5": {"data": {"alpha": 0.5}}},
    "rates": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
    "base": {
        **{"clients": 2, "rounds": 2},
        "data": {"name": "toy", "samples": 120, "test-samples": 60, "min-size": 2},
        **{"train": {"epochs": 1}, "score": {"clients-every": 1}},
    },
    "tuning": {
        "seeds": [9],
        "skew": "α = 1",
        "set": {"data": {"alpha": 1.0, "seed": 4, "validation": 0.25, "score-on": "validation"}},
    },
    "budget": {"bytes": 250.0, "flops": 1000.0},
    "fleet": {"one": {"about": "one", "largest": "mlp@0.25", "set": {"fleet": "mlp@0.25,mlp@0.5"}}},
    "kind": {
        "one-shot": {"set": {"rounds": 1, "train": {"epochs": 2}}},
        "public": {"set": {"data": {"public": 0.2}}},
    },
    "row": [
        {"name": "local", "fleets": ["one"], "sends": "nothing", "set": {"method": "local"}},
        {
            **{"name": "FedProx", "fleets": ["one"], "sends": "a network"},
            **{"set": {"method": "fedprox"}, "space": {"fedprox.mu": [0.01, 0.1]}},
        },
    ],
}


def record(
    folder: Path, cell: CellRun, value: float, more: Mapping[str, float] | None = None
) -> None:
    """Record a cell with this accuracy; a round: 100 bytes each way, 400 operations, 3 seconds.

    ``more``: last values of further curves by name.
    """
    scores: list[int | float | None] = [0.1, value - 0.1, value]
    rows: dict[str, list[int | float | None]] = {
        "round": [0, 1, 2],
        **{name: scores for name in ("accuracy", "personal.accuracy")},
        **{"bytes.up": [0, 100, 100], "bytes.down": [0, 100, 100], "flops.clients": [0, 400, 400]},
        "clock.end": [None, 3.0, 6.0],
    }
    rows |= {name: [None, None, last] for name, last in (more or {}).items()}
    summary: dict[str, Any] = {"primary": {"final": value}, "personal": {"worst": value / 2}}
    summary |= {"flops": {"total": 800}, "memory": {"largest": 5000}}
    fields: dict[str, Any] = {"settings": {}, "seed": cell.seed, "summary": summary, "curve": rows}
    records.append(folder, Recorded(fingerprint=cell.fingerprint, **fields))


def fill(board: Board, cells: Iterable[CellRun], values: dict[str, float]) -> None:
    """Record cells with the value of their row, plus a little that depends on the seed."""
    for cell in cells:
        record(board.folder, cell, values[cell.row.partition(":")[0]] + 0.01 * cell.seed)


def chosen(folder: Path, protocol: Protocol | None = None) -> Board:
    """Return a board whose rows have a configuration."""
    board = Board(folder, protocol or Protocol.model_validate(SMALL))
    fill(board, paper_table.cells(board.tuning()), {"local": 0.5, "FedProx": 0.5})
    board.choose()
    return board
