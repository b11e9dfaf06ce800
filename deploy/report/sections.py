"""The parts of a page that a single run and a comparison have in common, or that one run fills."""

from __future__ import annotations

from collections import Counter

from common.config import SECTIONS
from common.methods import names as methods
from common.methods import options
from common.metrics import fairness as measures
from deploy.report import plots
from deploy.report.layout import Card, Section
from deploy.report.plots import Models, Named
from deploy.report.read import Run, scalars, total
from deploy.report.table import Cell, Table
from deploy.report.text import NONE, clean, duration, number, percent, size

MOST_METRICS = 24  # a page of more small figures is not read


def learning(run: Run) -> Section:
    """Accuracy and loss on the server's test set."""
    named = [(run.name, run)]
    cards = [Card("Accuracy", plots.accuracy(named), _course(run), behind=_rounds(run))]
    if any(e.loss is not None for e in run.entries):
        cards.append(Card("Loss", plots.loss(named), f"Test loss by round, {run.done} rounds."))
    lead = "The server's model on the server's test set, after each round; round 0 is before any."
    return Section("Learning", cards, lead)


def clients(run: Run) -> Section | None:
    """Every client's accuracy, with the table behind it."""
    scores = run.scores()
    if not scores:
        return None
    own = [s.accuracy for _, s in scores if s.accuracy is not None]
    mean = percent(sum(own) / len(own)) if own else NONE
    alt = f"Bars: accuracy of {len(scores)} clients on their own test shares; own models {mean}."
    models = run.models()
    header = ("client", "model", "samples", "parameters", "own model", "global model")
    rows = []
    for m, s in scores:
        k = Cell(str(s.k), dot=models.index(m.model) if m.model in models else 7)
        shares = (percent(s.accuracy), percent(s.accuracy_global))
        rows.append((k, m.model, number(m.n), number(m.parameters), *shares))
    card = Card("", plots.clients(run), alt, behind=Table(header, rows, "llr"), span=12)
    lead = f"Accuracy on each client's own test share. The clients' own models: {mean} on average."
    return Section("Clients", [card], lead)


def fairness(run: Run) -> Section | None:
    """AMP, FM and WLP of every model, and what agnostic domains would see.

    None if fewer than two clients were scored.
    """
    models = _models(run)
    if not models:
        return None
    worst = {name: min(values) for name, (values, _) in models.items()}
    told = "; ".join(f"{name} {percent(low)}" for name, low in worst.items())
    lead = (
        "AMP: mean over clients, weighted by test samples; FM: variance over clients; WLP: the "
        "worst client. Whatever mixture of clients a model meets, it does no worse than WLP."
    )
    rows = []
    for i, (name, (values, sizes)) in enumerate(models.items()):
        of = measures(values, sizes)
        amp, wlp = percent(of["amp"], 2), percent(of["wlp"], 2)
        rows.append((Cell(name, dot=i), amp, f"{of['fm']:.5f}", wlp))
    behind = Table(("model", "AMP", "FM", "WLP"), rows)
    mixed = f"Accuracy on {plots.DRAWS} random mixtures of clients"
    alts = f"Dots: clients; worst client: {told}.", f"Accuracy over mixtures; floor: {told}."
    cards = [
        Card("Clients' accuracies", plots.distribution(models), alts[0], behind=behind),
        Card(mixed, plots.mixtures(models), alts[1]),
    ]
    return Section("Fairness", cards, lead)


def _models(run: Run) -> Models:
    """Every model that all tested clients scored: named ones, else the global, else the own."""
    scores = [
        (m, s) for m, s in run.scores() if s.accuracy is not None or s.accuracy_global is not None
    ]
    if len(scores) < 2:
        return {}
    main = _main(run)
    columns: dict[str, list[float | None]] = {
        "own models": [s.accuracy for _, s in scores],
        main: [s.accuracy_global for _, s in scores],
    }
    for name in scores[0][1].accuracies:
        columns[name] = [s.accuracies.get(name) for _, s in scores]
    if columns["own models"] == columns[main]:
        del columns["own models"]
    sizes = [max(m.n_test, 1) for m, _ in scores]
    known = {name: [v for v in values if v is not None] for name, values in columns.items()}
    return {name: (v, sizes) for name, v in known.items() if len(v) == len(scores)}


def _main(run: Run) -> str:
    """What the run's own model is called where several are scored."""
    told = [e.fairness.models for e in run.entries if e.fairness is not None]
    further = {name for _, s in run.scores() for name in s.accuracies}
    rest = [name for name in (told[-1] if told else {}) if name not in {*further, "own"}]
    return rest[0] if rest else "global"


def data(run: Run) -> Section | None:
    """The partition."""
    figure = plots.partition(run)
    if figure is None:
        return None
    n = sum(p.n for p in run.members)
    alt = f"Bubbles: how {len(run.classes)} classes are spread over {len(run.members)} clients."
    lead = (
        f"{number(n)} training samples on {len(run.members)} clients; "
        "the area of a bubble is the number of samples of a class that a client holds."
    )
    span = 6 if figure.get_figwidth() < 7.5 else 12
    cards = [Card("Samples per class", figure, alt, span=span)]
    return Section("Data and models", [*cards, Card("Architectures", table=_fleet(run))], lead)


def cost(run: Run) -> Section | None:
    """Bytes and seconds by round."""
    cards = []
    if any(e.bytes for e in run.entries):
        up, down = size(run.cost("up")), size(run.cost("down"))
        alt = f"Bars: bytes by round; {down} down and {up} up in all."
        cards.append(Card("Bytes", plots.bytes_by_round(run), alt))
    if any(e.seconds for e in run.entries):
        alt = f"Stacked bars: seconds by round and phase; {duration(run.seconds())} in all."
        cards.append(Card("Time", plots.seconds_by_round(run), alt))
    return Section("Cost", cards, "What each round took; round 0 is the census.") if cards else None


def formula_cost(runs: Named) -> Section | None:
    """Numbers by DL-MH's equations 7 to 10, bytes sent, and the ratio; a row for each run."""
    rows = []
    for label, run in runs:
        costs = [e.cost for e in run.entries if e.cost and e.cost.numbers]
        if costs:
            numbers, sent = sum(c.numbers for c in costs), sum(c.bytes for c in costs)
            counted = (number(len(costs)), number(numbers), number(sent))
            rows.append((label, *counted, f"{sent / numbers:.3f}"))
    if not rows:
        return None
    header = ("method", "rounds", "numbers by the formula", "bytes sent", "bytes per number")
    lead = (
        "Numbers exchanged as DL-MH's paper counts them (its equations 7 to 10), and the bytes of "
        "the training messages, both ways, names and headers included. A float32 has 4 bytes."
    )
    return Section("Communication", [Card("", table=Table(header, rows), span=12)], lead)


def incentive(run: Run) -> Section | None:
    """Each client's accuracy on the whole test set before and after the incentive (I-DL-MH)."""
    last = next((e.incentive for e in reversed(run.entries) if e.incentive), None)
    if last is None:
        return None
    models = {member.k: member.model for member in run.members}
    rows = []
    for k, gain in last.clients.items():
        change = gain.after / gain.before - 1 if gain.before else None
        relative = NONE if change is None else f"{100 * change:+.0f} %"
        shown = (percent(gain.before), percent(gain.after), relative)
        rows.append((number(k), models.get(k, "?"), *shown))
    table = Table(("client", "model", "before", "after", "gain"), rows, "rlr")
    lead = "Accuracy of the clients' own models on the whole test set, before and after."
    return Section("Incentive", [Card("", table=table, span=12)], lead)


def metrics(runs: Named) -> Section | None:
    """The scalars a method reports about itself, one small figure each; a point is no curve."""
    seen = Counter(n for _, run in runs for e in run.entries for n in scalars(e))
    short = all(run.done < 2 for _, run in runs)
    names = [name for name, times in seen.items() if short or times > len(runs)]
    more = len(names) - MOST_METRICS
    cards = [
        Card(name, plots.metric(runs, name), f"{name} by round.", span=4)
        for name in names[:MOST_METRICS]
    ]
    lead = f"{more} more are in the journal." if more > 0 else ""
    return Section("The method's own numbers", cards, lead) if cards else None


def failures(runs: Named) -> Section:
    """Every reply that was missing, broken or refused, with its reason."""
    several = len(runs) > 1
    told = [(label, f) for label, run in runs for f in run.failures()]
    rows = [(label, number(f.round), number(f.k), f.reason)[not several :] for label, f in told]
    if not rows:
        return Section("Failures", [Card("", text="None: every reply came and was good.", span=12)])
    header = ("run", "round", "client", "reason")[not several :]
    lead = "Such a reply enters no average."
    return Section("Failures", [Card("", table=Table(header, rows, "l"), span=12)], lead)


def settings(run: Run) -> Section:
    """The resolved configuration, a card for each of its tables, and what the run was made with.

    Tables that the method does not read had no say in the run and are left out.
    """
    top = {n: v for n, v in run.config.items() if not isinstance(v, dict)}
    method = run.setting("method") or ""
    read = {"data", "train", "score", "wire", method}
    read |= set(options(method).uses if method in methods() else SECTIONS)
    tables = {n: v for n, v in run.config.items() if isinstance(v, dict) and n in read}
    made = dict(run.summary.versions) if run.summary else {}
    if run.summary and run.summary.weights_sha256:
        made["weights, SHA-256"] = run.summary.weights_sha256
    cards = []
    for name, values in (("run", top), *tables.items(), ("made with", made)):
        rows = [(n, repr(v) if v == "" else clean(v, 400)) for n, v in values.items()]
        if rows:
            cards.append(Card(name, table=Table(("setting", "value"), rows, "l"), span=4))
    if not cards:
        cards = [Card("", text="Unknown: the run left no config.toml.", span=12)]
    return Section("Settings", cards, f"As resolved; the run lies in {run.path.name}.")


def _course(run: Run) -> str:
    points = run.accuracies()
    if not points:
        return "Accuracy by round: not scored yet."
    t, best = run.best()
    (first, a), (last, z) = points[0], points[-1]
    return (
        f"Accuracy by round: {percent(a)} at round {first}, {percent(z)} at "
        f"round {last}, best {percent(best)} at round {t}."
    )


def _fleet(run: Run) -> Table:
    """The architectures: how many clients bring each, its size, the samples they hold."""
    rows = []
    for i, model in enumerate(run.models()):
        owners = [m for m in run.members if m.model == model]
        sizes = sorted({m.parameters for m in owners if m.parameters is not None})
        told = dict.fromkeys(number(n) for n in (sizes[:1] + sizes[-1:]))
        samples = number(sum(m.n for m in owners))
        rows.append((Cell(model, dot=i), str(len(owners)), " to ".join(told), samples))
    return Table(("model", "clients", "parameters", "samples"), rows)


def _rounds(run: Run) -> Table:
    rows = []
    for e in run.entries:
        replied = f"{len(e.replied)} / {len(e.selected)}" if e.selected else NONE
        spent = (size(e.bytes.get("down")), size(e.bytes.get("up")), duration(total(e)))
        rows.append((str(e.round), percent(e.accuracy, 2), number(e.loss), replied, *spent))
    return Table(("round", "accuracy", "loss", "replied / selected", "down", "up", "time"), rows)
