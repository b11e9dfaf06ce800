"""A table's accuracies against what its runs cost: bytes sent, or operations of training."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.report.cost_picture import Panels, Spot, png
from deploy.study import records
from deploy.study.paper_table import CellRun, Comparison, TableFile, cells
from deploy.study.records import Recorded

SHARES = ("accuracy.", "accuracies.", "fairness.amp", "metrics.client_test_accuracy")
"""Measures that are accuracies begin so; ``accuracy_bn`` is the same runs' once more."""

Cost = Callable[[Recorded], float | None]


def _megabytes(recorded: Recorded) -> float | None:
    """10⁶ bytes that a client sent in the run, the mean over clients."""
    up, clients = recorded.measured("bytes.up"), recorded.summary.get("clients")
    return up / len(clients) / 1e6 if up is not None and clients else None


def _operations(recorded: Recorded) -> float | None:
    """10⁹ floating-point operations of all clients and the server; None where nobody counted."""
    total = recorded.measured("flops.total")
    return total / 1e9 if total else None


COSTS: Mapping[str, tuple[str, Cost]] = {
    "bytes": ("megabytes sent by a client", _megabytes),
    "flops": ("GFLOP of training, clients and server", _operations),
}


def pictures(filled: Comparison, file: TableFile, folder: Path, stem: str) -> list[Path]:
    """``STEM-bytes.png`` and ``STEM-flops.png`` in ``folder``; each only where two rows with
    accuracies are recorded that have such a cost.
    """
    drawn = []
    for name, (axis, cost) in COSTS.items():
        panels = _panels(filled, file, folder, cost)
        if len({row for spots in panels.values() for row in spots}) >= 2:
            drawn.append(folder / f"{stem}-{name}.png")
            png(filled.title, filled.unit, filled.rows, panels, axis, drawn[-1])
    return drawn


def _panels(filled: Comparison, file: TableFile, folder: Path, cost: Cost) -> Panels:
    found: dict[tuple[str, str], list[float]] = {}
    known = records.read(folder)
    for cell in (cell for cell in cells(file) if cell.fingerprint in known and _is_share(cell)):
        if (spent := cost(known[cell.fingerprint])) is not None:
            found.setdefault((cell.row, cell.column), []).append(spent)
    panels: dict[str, dict[str, Spot]] = {}
    for (row, column), spent_by_seed in found.items():
        told = filled.cell(row, column)
        if told.mean is not None:
            spot = Spot(statistics.fmean(spent_by_seed), told.mean, told.interval)
            panels.setdefault(column, {})[row] = spot
    return panels


def _is_share(cell: CellRun) -> bool:
    return cell.measure.startswith(SHARES) and not cell.line.reach and cell.line.scale is None
