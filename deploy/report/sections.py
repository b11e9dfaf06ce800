"""Sections of a report page, about a single run or a comparison of several."""

import math
from collections import Counter

import numpy as np

from common.journal import Entry, present
from common.measures import ACCURACY, MEASURES
from common.methods import names as methods
from common.methods import options
from common.metrics import MANY, SHARES, thinned
from common.metrics import fairness as measures
from common.objectives import Labels
from common.parse import auto_of, usual
from common.settings.config import ALWAYS, SECTIONS
from deploy.report import plots
from deploy.report.charts import lines, measure_in
from deploy.report.groups import Group, Groups, named
from deploy.report.read import Run, asked, of_clients, over_classes, scalars, total
from deploy.report.style import Card, Section, single, tabular
from deploy.report.table import (
    NONE,
    Cell,
    Table,
    clean,
    duration,
    number,
    operations,
    percent,
    size,
)

MOST_METRICS = 24  # a page with more small figures is hard to read
MOST_CLIENTS = 40  # with more clients the squares are too small to see
MOST_LINES = 10  # with more labels or targets the curves are those with the lowest scores
MOST_CLASSES = 100  # with more classes the squares of a confusion matrix are too small to see
SCORE = {
    "global": "The server's model on its test set",
    "personal": "The clients' models on their own test samples",
}
"""What the primary score measures."""
MEAN = "Mean over clients, weighted by their test samples"


def learning(run: Run) -> Section | None:
    """Return the primary score, and the loss on the server's test set; None without scores."""
    if run.done and not run.accuracies():
        return None
    alone, measure = [Group(run.name, [run])], run.measure
    cards = [Card(measure.heading, plots.score(alone), _course(run), behind=_rounds(run))]
    for name in others(alone):
        title = MEASURES[name].heading
        cards.append(Card(title, plots.other(alone, name), f"{title} by round."))
    if any(e.loss is not None for e in run.entries):
        cards.append(Card("Loss", plots.loss(alone), f"Test loss by round, {run.done} rounds."))
    before = "; round 0 is before training" if run.primary == "global" else ""
    lead = f"{SCORE[run.primary]} after each round{before}.{meanings(alone)}"
    return Section("Learning", cards, lead)


def others(groups: Groups) -> list[str]:
    """Return the names of the measures beside the primary one."""
    return list(dict.fromkeys(n for _, run in named(groups) for e in run.entries for n in e.others))


def meanings(groups: Groups) -> str:
    """Return range and direction of the measures in words; empty for classes."""
    measures = [measure_in(groups), *(MEASURES[name] for name in others(groups))]
    return "".join(f" {m.heading}: {m.meaning}." for m in measures if m.meaning)


def clients(run: Run) -> Section | None:
    """Return every client's score as a plot and a table; None if no client was scored."""
    scores = run.scores()
    if all(s.own is None and s.shared is None for _, s in scores):
        return None
    whose, mean = run.mean_on_clients()
    result, n, title = f"{whose} {run.text(mean)}", len(scores), run.measure.title
    if n > MANY:
        figure, caption = plots.ascending(run), f"Curve: sorted scores of {n} clients"
    else:
        caption = f"Bars: {title} of {n} clients on their own test shares"
        figure = plots.clients(run)
    alt = f"{caption}; {result}."
    lead = f"{run.measure.heading} on each client's own test share. {MEAN}: {result}."
    if personal := run.newest("personal"):
        tenth, worst = run.text(personal.worst_tenth), run.text(personal.worst)
        lead += (
            f" Unweighted mean {run.text(personal.unweighted)}, standard deviation "
            f"{run.text(personal.std)}, worst tenth {tenth}, worst client {worst}."
        )
        if personal.pooled:
            lead += f" Test samples of all clients together: {run.text(personal.value)}."
    behind = of_clients(run, parameters=True)
    return single("Clients", lead, figure=figure, alt=alt, behind=behind)


def classes(run: Run) -> Section | None:
    """Return the metrics by class of the primary score's newest round, and its confusion matrix.

    None if the metrics are not recorded.
    """
    scored = [e for e in run.entries if e.by_class and len(e.by_class.accuracy) == len(run.classes)]
    if not scored or (by_class := scored[-1].by_class) is None:
        return None
    newest, names = scored[-1], run.classes
    found, samples = run.confusion, Counter[int]()
    counts = found.counts if found and found.round == newest.round else []
    if any(max(label, predicted) >= len(names) for label, predicted, _ in counts):
        counts = []
    for label, _, count in counts:
        samples[label] += count
    shown = thinned(range(len(names)))
    rows = [
        (names[c], number(samples[c]) if counts else NONE, percent(by_class.accuracy[c]))
        for c in shown
    ]
    table = Table(("class", "test samples", "accuracy"), rows)
    lead = (
        f"{SCORE[newest.primary]} after round {newest.round}, all samples together: "
        f"{over_classes(by_class, 2)}."
    )
    cards = [Card("Accuracy by class", table=table)]
    if counts and len(names) <= MOST_CLASSES:
        figure = plots.confusion(counts, names)
        alt = f"Squares: share of each class (row) that is predicted as each class; {lead}"
        cards.insert(0, Card("Confusion matrix, % of each class", figure, alt))
    return Section("Classes", cards, lead)


def outputs(run: Run) -> Section | None:
    """Return the newest scores of each label or target, and the predictions of the final model.

    None for classes, and if they are not recorded.
    """
    newest = next((e for e in reversed(run.entries) if e.by_output), None)
    names, (noun, nouns) = run.classes, run.objective.noun
    if newest is None or any(len(v) != len(names) for v in newest.by_output.values()):
        return None
    scores = {MEASURES[name]: values for name, values in newest.by_output.items()}
    rows = [
        (names[i], *(m.text(values[i], 2) for m, values in scores.items()))
        for i in thinned(range(len(names)))
    ]
    table = Card(f"Scores by {noun}", table=Table((noun, *(m.title for m in scores)), rows))
    lead = f"{SCORE[newest.primary]} after round {newest.round}, all samples together."
    cards = [table]
    if len(names) > 1:
        shown = {m.title: values for m, values in scores.items() if math.isfinite(m.most)}
        title, alt = " and ".join(shown), f"Dots: {' and '.join(shown)} of {len(names)} {nouns}."
        cards = [Card(title, plots.by_output(names, shown, noun), alt, span=12), table]
    found = run.predictions
    if found and found.shown(newest) and found.true and len(found.true[0]) == len(names):
        first = next(iter(scores.values()))
        ranks = [math.inf if score is None else score for score in first]
        lowest = sorted(range(len(names)), key=ranks.__getitem__)[:MOST_LINES]
        pairs = {
            names[i]: ([row[i] for row in found.true], [row[i] for row in found.predicted])
            for i in sorted(lowest)
        }
        cards += (_curves if run.objective is Labels else _residuals)(pairs)
        lead += f" Predictions are of {number(len(found.true))} test samples"
        lead += f" and at most {MOST_LINES} {nouns}, those with the lowest scores."
    return Section(nouns.capitalize(), cards, lead)


def texts(run: Run) -> Section | None:
    """Return how the final model continues texts of the test set; None if it learns no texts."""
    if run.predictions is None or not run.predictions.texts:
        return None
    lead = (
        f"The server's model after round {run.predictions.round} continues texts of its test set; "
        "each token is drawn from the model's probabilities, with the run's seed."
    )
    rows = [[text.replace("\n", " ⏎ ") for text in pair] for pair in run.predictions.texts]
    header = "beginning, of the test set", "continued by the model"
    return tabular("Texts", header, rows, lead, align="l")


def _curves(labels: plots.Outputs) -> list[Card]:
    """Return the curves of labels that have samples with and without them."""
    both = {name: pair for name, pair in labels.items() if {*pair[0]} == {0.0, 1.0}}
    curves = plots.label_curves(both).items() if both else ()
    return [Card(title, figure, f"{title} of {len(both)} labels.") for title, figure in curves]


def _residuals(targets: plots.Outputs) -> list[Card]:
    """Return predictions against true values, and a table of predicted less true."""
    rows, cards = [], []
    for name, (true, predicted) in targets.items():
        errors = np.subtract(predicted, true)
        spread = np.quantile(errors, [*SHARES.values()])
        rows.append((name, *(number(float(v)) for v in (errors.mean(), errors.std(), *spread))))
        axes = f"true {name}", f"predicted {name}"
        figure = lines({name: (true, predicted)}, *axes, dots=True)
        cards.append(Card(axes[1].capitalize(), figure, f"Dots: {axes[1]} by {axes[0]}."))
    table = Table(("target", "mean", "deviation", *SHARES), rows)
    return [*cards, Card("Predicted less true", table=table)]


def fairness(run: Run) -> Section | None:
    """Return AMP, FM and WLP of every model, and its accuracy on agnostic domains: random mixtures.

    Mixtures are of accuracies alone: another measure of a mixture is no mean of the clients'. None
    if fewer than two clients were scored.
    """
    models, measure = run.on_clients(), run.measure
    if not models or len(run.scores()) < 2:
        return None
    spreads = {name: measures(*of, higher=measure.higher) for name, of in models.items()}
    lowest = "; ".join(f"{name} {run.text(spread['wlp'])}" for name, spread in spreads.items())
    lead = f"AMP: {MEAN.lower()}; FM: variance over clients; WLP: the worst client."
    mixes = measure is ACCURACY
    if mixes:
        lead += " On every mixture of the clients' data a model is at least as accurate as WLP."
    rows = []
    for i, (name, spread) in enumerate(spreads.items()):
        amp, wlp = run.text(spread["amp"], 2), run.text(spread["wlp"], 2)
        rows.append((Cell(name, dot=i), amp, f"{spread['fm']:.5f}", wlp))
    behind = Table(("model", "AMP", "FM", "WLP"), rows)
    mixed = f"Accuracy on {plots.DRAWS} random mixtures of clients"
    alts = f"Dots: clients; worst client: {lowest}.", f"Accuracy over mixtures; floor: {lowest}."
    title = "Clients' accuracies" if mixes else f"Clients' {measure.title}"
    cards = [Card(title, plots.distribution(models, measure), alts[0], behind=behind)]
    cards += [Card(mixed, plots.mixtures(models), alts[1])] if mixes else []
    return Section("Fairness", cards, lead)


def data_read(run: Run) -> Section | None:
    """Return what was read before training, and why scores on it can mislead."""
    if run.data is None or not run.data.rows:
        return None
    rows = [*run.data.rows, *(("scores", line) for line in run.data.warnings)]
    return tabular("Data that were read", ("", ""), rows, align="l")


def data(run: Run) -> Section | None:
    """Return the partition and the architectures; None if the census has no class counts."""
    figure = plots.partition(run)
    if figure is None:
        return None
    n = sum(p.n for p in run.members)
    noun, nouns = run.objective.noun
    alt = f"Bubbles: samples of {len(run.classes)} {nouns} on {len(run.members)} clients."
    lead = (
        f"{number(n)} training samples on {len(run.members)} clients; "
        f"the area of a bubble is a client's number of samples of a {noun}."
    )
    if len(run.members) > MANY:
        lead += f" Shown are {MANY} of them."
    span = 6 if figure.get_figwidth() < 7.5 else 12
    cards = [Card(f"Samples per {noun}", figure, alt, span=span)]
    return Section("Data and models", [*cards, Card("Architectures", table=_fleet(run))], lead)


def cost(run: Run) -> Section | None:
    """Return bytes and seconds by round."""
    cards = []
    if any(e.bytes for e in run.entries):
        up, down = size(run.cost("up")), size(run.cost("down"))
        alt = f"Bars: bytes by round; {down} down and {up} up in all."
        cards.append(Card("Bytes", plots.bytes_by_round(run), alt))
    if any(e.seconds for e in run.entries):
        alt = f"Stacked bars: seconds by round and phase; {duration(run.seconds())} in all."
        cards.append(Card("Time", plots.seconds_by_round(run), alt))
    lead = "Bytes and time of each round; round 0 is the census."
    flops, memory = run.over("flops"), run.over("memory")
    if flops.get("clients") or flops.get("server"):
        clients, server = (operations(flops.get(side, 0)) for side in ("clients", "server"))
        lead += f" Training took {clients} at the clients and {server} at the server."
    if tuning := flops.get("finetune"):
        lead += f" Fine-tuning before scores took another {operations(tuning)}."
    if memory and memory.clients:
        largest, server = (size(memory.as_dict()[key]) for key in ("largest", "server"))
        lead += f" Tensors took {largest} at most at a client and {server} at the server."
    return Section("Cost", cards, lead) if cards else None


def formula_cost(groups: Groups) -> Section | None:
    """Return numbers by DL-MH's equations 7 to 10, bytes sent, and their ratio, a row for each run.

    None if no run counted them.
    """
    rows = []
    for label, run in named(groups):
        rounds = sum(e.cost is not None for e in run.entries)
        if (cost := run.over("cost")) and cost.numbers:
            counted = (number(rounds), number(cost.numbers), number(cost.bytes))
            rows.append((label, *counted, f"{cost.bytes / cost.numbers:.3f}"))
    header = ("method", "rounds", "numbers by the formula", "bytes sent", "bytes per number")
    lead = (
        "Numbers exchanged as DL-MH's paper counts them (its equations 7 to 10), and the bytes of "
        "the training messages in both directions, names and headers included. A float32 has 4 "
        "bytes."
    )
    return tabular("Communication", header, rows, lead)


def membership(run: Run) -> Section | None:
    """Return the clients that joined, left, returned or were replaced; None if none did."""
    rows = [
        (number(entry.round), number(event.k), event.kind, clean(event.cause))
        for entry in run.entries
        for event in entry.events
    ]
    header = ("before round", "client", "event", "cause")
    now = len(present(run.entries))
    lead = f"{now} of {len(run.members)} known clients take part after the last round."
    return tabular("Membership", header, rows, lead, align="rrl")


def normalised(groups: Groups) -> Section | None:
    """Return accuracy by the statistics of BatchNorm, a row for each run with such layers."""
    scored = [(label, run.newest("accuracy_bn") or {}) for label, run in named(groups)]
    meanings = {
        "running": "its running statistics",
        "batch": "those of each test batch",
        "recalibrated": "running statistics that clients measured",
    }
    kinds = [bn for bn in meanings if any(bn in a for _, a in scored)]
    rows = [(label, *(percent(a.get(bn), 2) for bn in kinds)) for label, a in scored if a]
    with_each = ", ".join(f"with {meanings[bn]} ({bn})" for bn in kinds)
    lead = f"The server's model when it was last scored: {with_each}."
    return tabular("BatchNorm's statistics", ("run", *kinds), rows, lead)


def incentive(run: Run) -> Section | None:
    """Return each client's accuracy on the whole test set before and after the incentive (I-DL-MH).

    None without an incentive.
    """
    last = run.newest("incentive")
    models = {member.k: member.model for member in run.members}
    rows = []
    for k, gain in last.clients.items() if last else ():
        change = gain.after / gain.before - 1 if gain.before else None
        relative = NONE if change is None else f"{100 * change:+.0f} %"
        cells = (percent(gain.before), percent(gain.after), relative)
        rows.append((number(k), models.get(k, "?"), *cells))
    header = ("client", "model", "before", "after", "gain")
    lead = "Accuracy of the clients' own models on the whole test set, before and after."
    return tabular("Incentive", header, rows, lead, align="rlr")


def coefficients(run: Run) -> Section | None:
    """Return the knowledge coefficients of all clients (KT-pFL) in the last round that has them."""
    last = next((e for e in reversed(run.entries) if e.coefficients), None)
    if last is None or len(last.coefficients) > MOST_CLIENTS:
        return None
    c = last.coefficients
    if not all(len(row) == len(c) and min(row) >= 0 for row in c):
        return None
    rows = [(number(k), *(f"{x:.3f}" for x in row)) for k, row in enumerate(c)]
    behind = Table(("client", *(f"from {k}" for k in range(len(c)))), rows)
    most = max(max(row) for row in c)
    lead = (
        f"How much each client (row) learns from the predictions of each client (column) in round "
        f"{last.round}. Rows sum to 1; the largest coefficient is {most:.3f}, 1/N is "
        f"{1 / len(c):.3f}."
    )
    alt = f"Squares: knowledge coefficients of {len(c)} clients, at most {most:.3f}."
    card = Card("", plots.coefficients(c), alt, behind=behind)
    return Section("Knowledge coefficients", [card], lead)


def metrics(groups: Groups) -> Section | None:
    """Return one small figure for each scalar of the method; long runs omit those of one point."""
    runs = [run for _, run in named(groups)]
    counts = Counter(n for run in runs for e in run.entries for n in scalars(e))
    short = all(run.done < 2 for run in runs)
    names = [name for name, times in counts.items() if short or times > len(runs)]
    more = len(names) - MOST_METRICS
    cards = [
        Card(name, plots.metric(groups, name), f"{name} by round.", span=4)
        for name in names[:MOST_METRICS]
    ]
    lead = "The colours are those of the runs in the results. " if len(groups) > 1 else ""
    lead += f"{more} more are in the journal." if more > 0 else ""
    return Section("The method's own numbers", cards, lead) if cards else None


def privacy(run: Run) -> Section | None:
    """Return (ε, δ) by round; None for a run without differential privacy."""
    spent = run.over("privacy")
    if spent is None:
        return None
    rounds = [(e.round, e.privacy) for e in run.entries if e.privacy]
    rows = [(number(t), f"{p.epsilon:.4g}", f"{p.delta:.3g}") for t, p in rounds]
    knobs = ", ".join(f"{name} {clean(value, 40)}" for name, value in run.table("privacy").items())
    lead = (
        f"One client: ε = {spent.epsilon:.4g} at δ = {spent.delta:.3g} after round {run.done} "
        f"({knobs}). The journal has no values or updates of single clients."
    )
    return single("Differential privacy", text=lead, behind=Table(("round", "ε", "δ"), rows))


def failures(groups: Groups) -> Section:
    """Return every missing, broken or rejected reply with its reason."""
    runs = named(groups)
    several = len(runs) > 1
    failed = [(label, f) for label, run in runs for f in run.over("failures")]
    more = len(failed) - MANY
    rows = [
        (label, number(f.round), number(f.k), f.reason)[not several :] for label, f in failed[:MANY]
    ]
    if not rows:
        private = any(run.private for _, run in runs)
        why = "Not listed: a refused reply shows something of a single client's update."
        text = why if private else "None: every reply arrived and was valid."
        return single("Failures", text=text)
    header = ("run", "round", "client", "reason")[not several :]
    lead = "Such a reply is not aggregated."
    lead += f" {more} more are in the journal." if more > 0 else ""
    return single("Failures", lead, table=Table(header, rows, "l"))


def settings(run: Run) -> Section:
    """Return the resolved configuration, a card for each of its tables, and the versions used.

    Tables that the method does not read had no effect on the run and are left out.
    """
    top = {n: v for n, v in run.config.items() if not isinstance(v, dict)}
    method = run.setting("method") or ""
    used = {"clock": any(entry.clock for entry in run.entries), "buffer": run.buffered}
    read = {name for name in (*ALWAYS, method) if used.get(name, True)}
    read |= set(options(method).uses if method in methods() else SECTIONS)
    tables = {n: v for n, v in run.config.items() if isinstance(v, dict) and n in read}
    versions = dict(run.summary.versions) if run.summary else {}
    if run.summary and run.summary.weights_sha256:
        versions["weights, SHA-256"] = run.summary.weights_sha256
    cards = []
    for name, values in (("run", top), *tables.items(), ("made with", versions)):
        resolved = {n: _resolved(name, n, v, method) for n, v in values.items()}
        rows = [(n, repr(v) if v == "" else clean(v, 400)) for n, v in resolved.items()]
        if rows:
            cards.append(Card(name, table=Table(("setting", "value"), rows, "l"), span=4))
    if not cards:
        cards = [Card("", text="Unknown: config.toml is missing.", span=12)]
    return Section("Settings", cards, f"Resolved values; the run's folder is {run.path.name}.")


def _resolved(table: str, key: str, value: object, method: str) -> object:
    """Return a setting's value, resolved for the method if a shared key is ``auto`` (number: 0)."""
    fields = SECTIONS[table].model_fields if table in SECTIONS and method in methods() else {}
    field = fields.get(key.replace("-", "_"))
    if field is None or auto_of(field) is None or value not in ("auto", 0):
        return value
    return usual(f"{table}.{key}", field, options(method).auto)


def _course(run: Run) -> str:
    points = run.accuracies()
    if not points:
        return f"{run.measure.heading} by round: not scored yet."
    t, best = run.best()
    (first, a), (last, z) = points[0], points[-1]
    return (
        f"{run.measure.heading} by round: {run.text(a)} at round {first}, {run.text(z)} at "
        f"round {last}, best {run.text(best)} at round {t}."
    )


def _fleet(run: Run) -> Table:
    """Return the architectures with their clients, parameters and training samples."""
    rows = []
    for i, model in enumerate(run.models()):
        owners = [m for m in run.members if m.model == model]
        sizes = sorted({m.parameters for m in owners if m.parameters is not None})
        bounds = dict.fromkeys(number(n) for n in (sizes[:1] + sizes[-1:]))
        samples = number(sum(m.n for m in owners))
        rows.append((Cell(model, dot=i), str(len(owners)), " to ".join(bounds), samples))
    return Table(("model", "clients", "parameters", "samples"), rows)


def _duration(entry: Entry) -> str:
    return NONE if entry.privacy and not entry.seconds else duration(total(entry))


def _rounds(run: Run) -> Table:
    rows, names = [], others([Group(run.name, [run])])
    for e in run.entries:
        shown = e.selected and not e.privacy  # under [privacy] the replies are withheld
        replied = f"{len(e.replied)} / {asked(e)}" if shown else NONE
        spent = (size(e.bytes.get("down")), size(e.bytes.get("up")), _duration(e))
        scores = [run.text(e.primary_score, 2)]
        scores += [MEASURES[name].text(e.others.get(name), 2) for name in names]
        rows.append((str(e.round), *scores, number(e.loss), replied, *spent))
    titles = [run.measure.title, *(MEASURES[name].title for name in names)]
    return Table(("round", *titles, "loss", "replied / selected", "down", "up", "time"), rows)
