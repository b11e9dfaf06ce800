"""What the literature's cost formulas count beside what travelled, and what clients got for it."""

from __future__ import annotations

from deploy.report import amounts
from deploy.report.figures import Named
from deploy.report.page import Card, Grid, Section
from deploy.report.read import Run


def formula(named: Named) -> Section | None:
    """Numbers by DL-MH's equations 7 to 10, bytes sent, and the ratio; a row for each run."""
    rows = []
    for label, run in named:
        costs = [e.cost for e in run.entries if e.cost.get("numbers")]
        if not costs:
            continue
        numbers = sum(cost["numbers"] for cost in costs)
        sent = sum(cost.get("bytes", 0.0) for cost in costs)
        rows.append(
            (
                label,
                amounts.number(len(costs)),
                amounts.number(int(numbers)),
                amounts.number(int(sent)),
                f"{sent / numbers:.3f}",
            )
        )
    if not rows:
        return None
    header = ("method", "rounds", "numbers by the formula", "bytes sent", "bytes per number")
    lead = (
        "Numbers exchanged as DL-MH's paper counts them (its equations 7 to 10), and the bytes of "
        "the training messages, both ways, names and headers included. A float32 has 4 bytes."
    )
    card = Card("", grid=Grid(header, rows, frozenset(range(1, 5))), span=12)
    return Section("Communication", [card], lead)


def incentive(run: Run) -> Section | None:
    """Each client's accuracy on the whole test set before and after the incentive (I-DL-MH)."""
    last = next((e.incentive for e in reversed(run.entries) if e.incentive), None)
    clients = last.get("clients") if last else None
    if not isinstance(clients, dict):
        return None
    models = {str(peer.k): peer.model for peer in run.peers}
    rows = []
    for k, gain in clients.items():
        before, after = (_number(gain, name) for name in ("before", "after"))
        change = None if before is None or after is None else after - before
        relative = f"{100 * change / before:+.0f} %" if change is not None and before else "–"
        shown = (amounts.percent(before), amounts.percent(after), relative)
        rows.append((amounts.number(int(k)), models.get(k, "?"), *shown))
    header = ("client", "model", "before", "after", "gain")
    card = Card("", grid=Grid(header, rows, frozenset({0, 2, 3, 4})), span=12)
    lead = "Accuracy of the clients' own models on the whole test set, before and after."
    return Section("Incentive", [card], lead)


def _number(gain: object, name: str) -> float | None:
    value = gain.get(name) if isinstance(gain, dict) else None
    return float(value) if isinstance(value, int | float) else None
