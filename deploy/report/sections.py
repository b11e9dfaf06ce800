"""The parts of a page that a single run and a comparison have in common, or that one run fills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from common.methods import CONFIGS
from deploy.report import amounts, figures
from deploy.report.clean import clean
from deploy.report.figures import Named
from deploy.report.page import Card, Grid, Section
from deploy.report.read import Run, total
from deploy.report.svg import inline

MOST_METRICS = 24  # a page of more small figures is not read


def learning(run: Run) -> Section:
    """Accuracy and loss on the server's test set."""
    named = [(run.setting("method") or run.path.name, run)]
    told = _course(run)
    cards = [
        Card("Accuracy", svg=inline(figures.accuracy(named), "accuracy", told), behind=_rounds(run))
    ]
    if any(e.loss is not None for e in run.entries):
        alt = f"Test loss by round, {run.done} rounds."
        cards.append(Card("Loss", svg=inline(figures.loss(named), "loss", alt)))
    lead = "The server's model on the server's test set, after each round; round 0 is before any."
    return Section("Learning", cards, lead)


def clients(run: Run) -> Section | None:
    """Every client's accuracy, with the table behind it."""
    scores = run.scores()
    if not scores:
        return None
    peers = {p.k: p for p in run.peers}
    own = [s.accuracy for s in scores if s.accuracy is not None]
    mean = amounts.percent(sum(own) / len(own)) if own else amounts.NONE
    alt = f"Bars: accuracy of {len(scores)} clients on their own test shares; own models {mean}."
    models = run.models()
    grid = Grid(
        ("client", "model", "samples", "parameters", "own model", "global model"),
        [
            (
                str(s.k),
                s.model,
                amounts.number(s.n),
                amounts.number(peers[s.k].parameters if s.k in peers else None),
                amounts.percent(s.accuracy),
                amounts.percent(s.accuracy_global),
            )
            for s in scores
        ],
        frozenset({2, 3, 4, 5}),
        [models.index(s.model) if s.model in models else 7 for s in scores],
    )
    card = Card("", svg=inline(figures.clients(run), "clients", alt), behind=grid, span=12)
    lead = f"Accuracy on each client's own test share. The clients' own models: {mean} on average."
    return Section("Clients", [card], lead)


def data(run: Run) -> Section | None:
    """The partition."""
    figure = figures.partition(run)
    if figure is None:
        return None
    n = sum(p.n for p in run.peers)
    alt = f"Bubbles: how {len(run.classes)} classes are spread over {len(run.peers)} clients."
    lead = (
        f"{amounts.number(n)} training samples on {len(run.peers)} clients; "
        "the area of a bubble is the number of samples of a class that a client holds."
    )
    span = 6 if figure.get_figwidth() < 7.5 else 12
    cards = [Card("Samples per class", svg=inline(figure, "data", alt), span=span)]
    return Section("Data and models", [*cards, Card("Architectures", grid=_fleet(run))], lead)


def cost(run: Run) -> Section | None:
    """Bytes and seconds by round."""
    cards = []
    if any(e.bytes for e in run.entries):
        up, down = amounts.size(run.cost("up")), amounts.size(run.cost("down"))
        alt = f"Bars: bytes by round; {down} down and {up} up in all."
        cards.append(Card("Bytes", svg=inline(figures.traffic(run), "traffic", alt)))
    if any(e.seconds for e in run.entries):
        alt = f"Stacked bars: seconds by round and phase; {amounts.duration(run.seconds())} in all."
        cards.append(Card("Time", svg=inline(figures.phases(run), "phases", alt)))
    return Section("Cost", cards, "What each round took; round 0 is the census.") if cards else None


def metrics(runs: Named) -> Section | None:
    """The scalars a method reports about itself, one small figure each; a point is no curve."""
    seen = Counter(n for _, run in runs for e in run.entries for n in e.scalars())
    short = all(run.done < 2 for _, run in runs)
    names = [name for name, times in seen.items() if short or times > len(runs)]
    more = len(names) - MOST_METRICS
    cards = [
        Card(
            name,
            svg=inline(figures.metric(runs, name), f"metric{i}", f"{name} by round."),
            span=4,
        )
        for i, name in enumerate(names[:MOST_METRICS])
    ]
    lead = f"{more} more are in the journal." if more > 0 else ""
    return Section("The method's own numbers", cards, lead) if cards else None


def failures(runs: Named) -> Section:
    """Every reply that was missing, broken or refused, with its reason."""
    several = len(runs) > 1
    rows = [
        [
            *([label] if several else []),
            amounts.number(f.round),
            amounts.number(f.k),
            f.reason,
        ]
        for label, run in runs
        for f in run.failures()
    ]
    if not rows:
        return Section("Failures", [Card("", text="None: every reply came and was good.", span=12)])
    header = [*(["run"] if several else []), "round", "client", "reason"]
    lead = "Such a reply enters no average."
    return Section("Failures", [Card("", grid=Grid(header, rows), span=12)], lead)


def settings(run: Run) -> Section:
    """The resolved configuration, a card for each of its tables, and what the run was made with.

    The tables of other methods had no say in the run and are left out.
    """
    top = {n: v for n, v in run.config.items() if not isinstance(v, dict)}
    others = CONFIGS.keys() - {run.setting("method") or ""}
    tables = {n: v for n, v in run.config.items() if isinstance(v, dict) and n not in others}
    cards = [_setting_card("run", top)] if top else []
    cards += [_setting_card(name, table) for name, table in tables.items() if table]
    summary = run.summary or {}
    made = summary.get("versions")
    made = dict(made) if isinstance(made, dict) else {}
    if "weights_sha256" in summary:
        made["weights, SHA-256"] = summary["weights_sha256"]
    if made:
        cards.append(_setting_card("made with", made))
    if not cards:
        cards = [Card("", text="Unknown: the run left no config.toml.", span=12)]
    return Section("Settings", cards, f"As resolved; the run lies in {run.path.name}.")


def present(sections: Iterable[Section | None]) -> Sequence[Section]:
    return [section for section in sections if section is not None]


def _setting_card(name: str, values: dict[str, object]) -> Card:
    rows = [(clean(n, 60), _value(v)) for n, v in values.items()]
    return Card(clean(name, 60), grid=Grid(("setting", "value"), rows), span=4)


def _value(value: object) -> str:
    return repr(value) if value == "" else clean(value, 400)


def _course(run: Run) -> str:
    points = run.accuracies()
    if not points:
        return "Accuracy by round: not scored yet."
    t, best = max(points, key=lambda point: point[1])
    (first, a), (last, z) = points[0], points[-1]
    return (
        f"Accuracy by round: {amounts.percent(a)} at round {first}, {amounts.percent(z)} at "
        f"round {last}, best {amounts.percent(best)} at round {t}."
    )


def _fleet(run: Run) -> Grid:
    """The architectures: how many clients bring each, its size, the samples they hold."""
    rows = []
    for model in run.models():
        owners = [p for p in run.peers if p.model == model]
        sizes = sorted({p.parameters for p in owners if p.parameters is not None})
        rows.append(
            (
                model,
                str(len(owners)),
                " to ".join(dict.fromkeys(amounts.number(n) for n in (sizes[:1] + sizes[-1:]))),
                amounts.number(sum(p.n for p in owners)),
            )
        )
    header = ("model", "clients", "parameters", "samples")
    return Grid(header, rows, frozenset({1, 2, 3}), range(len(rows)))


def _rounds(run: Run) -> Grid:
    rows = [
        (
            str(e.round),
            amounts.percent(e.accuracy, 2),
            amounts.number(e.loss),
            f"{len(e.replied)} / {len(e.selected)}" if e.selected else amounts.NONE,
            amounts.size(e.bytes.get("down")),
            amounts.size(e.bytes.get("up")),
            amounts.duration(total(e)),
        )
        for e in run.entries
    ]
    header = ("round", "accuracy", "loss", "replied / selected", "down", "up", "time")
    return Grid(header, rows, frozenset(range(1, 7)))
