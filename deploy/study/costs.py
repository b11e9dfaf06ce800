"""Plot a table's scores against a cost of its runs: bytes, operations, time on the clock."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.report.style import PAPER, series, set_log, style
from deploy.report.style import panels as grid
from deploy.report.table import clean
from deploy.study import records
from deploy.study.comparison import Comparison
from deploy.study.paper_table import CellRun, TableFile, cells
from deploy.study.records import Recorded

MARKERS = "osD^vP*Xh"  # one more than the colours, so that pairs of both repeat late
LOOK: dict[str, Any] = {"markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.6}
LOOK |= {"capsize": 3, "elinewidth": 1.0}

Panels = Mapping[str, Mapping[str, float]]
"""Column -> row -> cost of its runs, above 0, the mean over seeds."""

SHARES = (
    *("accuracy.", "accuracies.", "primary.", "personal.", "measures."),
    *("fairness.amp", "metrics.client_test_accuracy"),
)
"""Prefixes of measures that are scores, without ``accuracy_bn``, a second score of a run."""

Cost = Callable[[CellRun, Recorded], float | None]


def _megabytes(cell: CellRun, recorded: Recorded) -> float | None:
    """Return the megabytes (10⁶) that a client sent in the run, the mean over clients."""
    up = recorded.measured("bytes.up")
    return None if up is None else up / int(cell.flat["clients"]) / 1e6


def _operations(cell: CellRun, recorded: Recorded) -> float | None:
    """Return the GFLOP (10⁹) of all clients and the server; None if they were not counted."""
    total = recorded.measured("flops.total")
    return total / 1e9 if total else None


COSTS: Mapping[str, tuple[str, Cost]] = {
    "bytes": ("megabytes sent by a client", _megabytes),
    "flops": ("GFLOP of training, clients and server", _operations),
    "clock": ("seconds on the virtual clock", lambda _, recorded: recorded.measured("clock.end")),
}


def pictures(filled: Comparison, file: TableFile, folder: Path, stem: str) -> list[Path]:
    """Write ``STEM-COST.png`` in ``folder`` for each of ``COSTS``; return the paths.

    A picture is omitted unless two recorded rows have both scores and this cost.
    """
    files = []
    for name, (axis, cost) in COSTS.items():
        panels = _panels(filled, file, folder, cost)
        if len({row for rows in panels.values() for row in rows}) >= 2:
            files.append(folder / f"{stem}-{name}.png")
            png(filled, panels, axis, files[-1])
    return files


def _panels(filled: Comparison, file: TableFile, folder: Path, cost: Cost) -> Panels:
    costs: dict[str, dict[str, list[float]]] = {}
    known = records.read(folder)
    for cell in (cell for cell in cells(file) if cell.fingerprint in known and _is_share(cell)):
        spent, shown = cost(cell, known[cell.fingerprint]), filled.cell(cell.row, cell.column)
        if spent is not None and shown.mean is not None:
            costs.setdefault(cell.column, {}).setdefault(cell.row, []).append(spent)
    return {
        column: {row: statistics.fmean(spent) for row, spent in rows.items()}
        for column, rows in costs.items()
    }


def _is_share(cell: CellRun) -> bool:
    return cell.measure.startswith(SHARES) and not cell.line.reach and cell.line.scale is None


def png(filled: Comparison, panels: Panels, cost: str, path: Path) -> None:
    """Draw a panel for each column with its rows as points: the number against the cost.

    The cost axis is logarithmic; ``cost`` is its label with the unit. A row has the same colour
    and marker in every panel.
    """
    with style():
        title = clean(filled.title)
        figure, axes = grid(len(panels), title, (3.9, 3.2), (2.8, 0.4), 40)
        marks = {}
        for place, (name, spent) in zip(axes, panels.items(), strict=True):
            for i, row in enumerate(filled.rows):
                if row in spent:
                    cell = filled.cell(row, name)
                    mark: dict[str, Any] = {"fmt": MARKERS[i % len(MARKERS)], "color": series(i)}
                    marks[row] = place.errorbar(
                        spent[row], cell.mean, yerr=cell.interval, **mark, **LOOK
                    )
            set_log(place)
            place.set_title(clean(name), fontsize=10.0, loc="left")
            place.set_xlabel(cost)
            place.set_ylabel(filled.unit)
        shown = [row for row in filled.rows if row in marks]
        figure.legend(
            [marks[row] for row in shown], [clean(row) for row in shown], loc="outside right upper"
        )
        figure.savefig(path, format="png", dpi=160, facecolor=PAPER)
