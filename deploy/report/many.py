"""The table that stands for one line each where a run has many clients."""

from __future__ import annotations

from common.crowd import SHARES, quantiles
from deploy.report.read import Run
from deploy.report.table import Table
from deploy.report.text import number, percent


def of_many(run: Run) -> Table:
    """Quantiles of the scored clients, each column by itself."""
    scores, own = run.scores(), run.own_models
    samples = quantiles(member.n for member, _ in scores) or {}
    of_own = quantiles(score.accuracy if own else None for _, score in scores) or {}
    shared = quantiles(score.accuracy_global for _, score in scores) or {}
    rows = [
        (
            name,
            number(int(samples[name])) if samples else "",
            percent(of_own.get(name)),
            percent(shared.get(name)),
        )
        for name in SHARES
    ]
    header = (f"of {number(len(scores))} clients", "samples", "own model", "global model")
    return Table(header, rows, "lr")
