"""A table's accuracies against the bytes that its runs sent."""

from __future__ import annotations

import statistics
from pathlib import Path

from deploy.report.traffic_picture import Panels, Spot, png
from deploy.study.paper_table import CellRun, Comparison, TableFile, cells
from deploy.study.recorded import measured, record

SHARES = ("accuracy.", "accuracies.", "fairness.amp", "metrics.client_test_accuracy")
"""Measures that are accuracies begin so; ``accuracy_bn`` is the same runs' once more."""


def picture(filled: Comparison, file: TableFile, folder: Path, stem: str) -> list[Path]:
    """``STEM-bytes.png`` in ``folder``; nothing unless two rows with accuracies are recorded."""
    panels = _panels(filled, file, folder)
    if len({row for spots in panels.values() for row in spots}) < 2:
        return []
    path = folder / f"{stem}-bytes.png"
    png(filled.title, filled.unit, filled.rows, panels, path)
    return [path]


def _panels(filled: Comparison, file: TableFile, folder: Path) -> Panels:
    sent: dict[tuple[str, str], list[float]] = {}
    for cell in cells(file):
        summary = record(folder / "cells" / cell.fingerprint)
        if summary is not None and _is_share(cell):
            up, clients = measured(summary, "bytes.up"), summary.get("clients")
            if up is not None and isinstance(clients, list):
                sent.setdefault((cell.row, cell.column), []).append(up / len(clients) / 1e6)
    panels: dict[str, dict[str, Spot]] = {}
    for (row, column), megabytes in sent.items():
        told = filled.cell(row, column)
        if told.mean is not None:
            spot = Spot(statistics.fmean(megabytes), told.mean, told.interval)
            panels.setdefault(column, {})[row] = spot
    return panels


def _is_share(cell: CellRun) -> bool:
    return cell.measure.startswith(SHARES) and not cell.line.reach and cell.line.scale is None
