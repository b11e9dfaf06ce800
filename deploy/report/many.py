"""The table of a run's clients; of many clients it has quantiles instead of a line each."""

from common.metrics import MANY, SHARES, quantiles
from deploy.report.read import Run
from deploy.report.table import Cell, Table
from deploy.report.text import number, percent


def of_clients(run: Run, *, parameters: bool) -> Table:
    """Each scored client's samples and accuracies, with its number of ``parameters`` if asked."""
    scores, own, models = run.scores(), run.own_models, run.models()
    if len(scores) > MANY:
        return _of_many(run)
    columns = ["parameters"] if parameters else []
    rows = list[list[str | Cell]]()
    for m, s in scores:
        k = Cell(str(s.k), dot=models.index(m.model) if m.model in models else 7)
        size = [number(m.parameters)] if parameters else []
        shares = percent(s.accuracy if own else None), percent(s.accuracy_global)
        rows.append([k, m.model, number(m.n), *size, *shares])
    header = ("client", "model", "samples", *columns, "own model", "global model")
    return Table(header, rows, "llr" if parameters else "rlr")


def _of_many(run: Run) -> Table:
    """Quantiles of the scored clients, each column by itself."""
    scores, own = run.scores(), run.own_models
    samples = quantiles(member.n for member, _ in scores) or {}
    of_own = quantiles(score.accuracy if own else None for _, score in scores) or {}
    shared = quantiles(score.accuracy_global for _, score in scores) or {}
    rows = [
        (name, number(int(samples[name])), percent(of_own.get(name)), percent(shared.get(name)))
        for name in SHARES
    ]
    header = (f"of {number(len(scores))} clients", "samples", "own model", "global model")
    return Table(header, rows, "lr")
