"""Pages of the judged claims: an overview, each paper in words, and its comparisons in full."""

import json
from collections.abc import Sequence
from typing import Any

from deploy.report.table import Table, markdown
from deploy.settings import read_toml
from docs.tools import record_page
from tests.papers import CLAIMS, RESULTS, place
from tests.papers.claims_page import percent, stem
from tests.papers.judging import Paper, Verdict, read

FOLDER = RESULTS / "claims"
WORDS = {
    Verdict.REPRODUCED: ("Reproduced", "Our runs show what the paper says."),
    Verdict.CONTRADICTED: ("Contradicted", "Our runs show the opposite of what the paper says."),
    Verdict.NO_POWER: ("Undecided", "Our runs cannot tell whether the paper is right."),
    Verdict.UNFAIR: ("Not tested", "Our runs are too small or too different for a fair test."),
    Verdict.FLAWED: ("Impossible", "The sentence as printed contradicts the paper or itself."),
}
"""Heading and meaning of each verdict."""
LEGEND = (
    "The plot shows relative error reductions, positive as the claim says. A line is a claim's "
    "weakest comparison with its 95 % interval. Ticks are its other comparisons, a diamond is the "
    "paper's effect, and a triangle is an effect beyond the axis. Our runs cannot detect effects "
    "in the shaded range (power 80 %). Grey comparisons do not meet the fair conditions."
)
Claims = Sequence[dict[str, Any]]


def pages() -> dict[str, str]:
    """Return the overview, each paper's page and comparisons, and all records, by path."""
    recorded = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    papers = [
        (paper, [one for one in recorded if one["paper"] == paper.paper]) for paper in read(CLAIMS)
    ]
    found = {"results/papers.md": overview(papers)}
    for paper, claims in papers:
        found[f"results/{stem(paper)}.md"] = page(paper, claims)
    for paper, claims in papers:
        found[f"results/{stem(paper)}-comparisons.md"] = comparisons(paper, claims)
    owners = {name: (paper.paper, stem(paper)) for paper, _ in papers for name in paper.tables}
    return found | record_page.pages(owners, recorded)


def overview(papers: Sequence[tuple[Paper, Claims]]) -> str:
    """Return the page that counts the verdicts of all papers."""
    rows = []
    for paper, claims in papers:
        counts = [sum(one["verdict"] == verdict for one in claims) for verdict in WORDS]
        rows.append(f"| [{paper.paper}]({stem(paper)}.md) | {' | '.join(map(str, counts))} |")
    heads = " | ".join(heading.lower() for heading, _ in WORDS.values())
    lines = [
        "# Results in short",
        "",
        "This page counts which claims of the repeated papers hold in our recorded runs.",
        "",
        f"| paper | {heads} |",
        "|---|" + "--:|" * len(WORDS),
        *rows,
        "",
        *(f"- *{heading}*: {meaning}" for heading, meaning in WORDS.values()),
        "",
        "A claim is a sentence of the abstract, the contributions or the conclusion that a "
        "measurement can decide. A rule gives the verdict: at least five seeds, intervals of 95 % "
        "and Holm's correction over the claim's comparisons. `python -m tests.papers claims` "
        "repeats the verdicts from the records, and [results](../results.md) lists every record.",
        "",
        "Our runs are small: they show orderings on small data, not the papers' accuracies.",
    ]
    return "\n".join(lines) + "\n"


def page(paper: Paper, claims: Claims) -> str:
    """Return a paper's page: conclusion, figure, verdicts in words and protocol."""
    name = stem(paper)
    lines = [
        f"# {paper.paper}",
        "",
        f"This page says which claims of {paper.paper} hold in our recorded runs.",
        "",
        f"**What follows.** {paper.conclusion}",
        "",
        f"**What we ran.** {paper.ran}",
        "",
        f"**What differs.** {paper.differs}",
        "",
        f"![Effects: {paper.paper}](../tests/papers/results/claims/{name}.png)",
        "",
        LEGEND,
        "",
    ]
    for verdict, (heading, meaning) in WORDS.items():
        some = [one for one in claims if one["verdict"] == verdict]
        if some:
            lines += [f"## {heading}", "", meaning, "", *map(_claim, some), ""]
    if any(_changed(one) for one in claims):
        lines += ["† The claim was written or changed when its runs were there already.", ""]
    lines += [
        "## Protocol and records",
        "",
        "`python -m tests.papers table NAME` repeats a table.",
        "",
    ]
    lines += ["| record | runs | seeds |", "|---|---|--:|"]
    lines += [_record(name) for name in paper.tables]
    lines += ["", f"[All comparisons]({name}-comparisons.md) have their numbers."]
    return "\n".join(lines) + "\n"


def _record(name: str) -> str:
    """Return the row of a record: a link to its page if it has one, its title and its seeds."""
    file = read_toml(place(name))
    shown = f"[{name}](records/{name}.md)" if name in record_page.names() else f"`{name}`"
    title = str(file.get("title") or record_page.title(name)).replace("|", "∣")
    return f"| {shown} | {title} | {len(file.get('seeds', [1]))} |"


def _changed(one: dict[str, Any]) -> bool:
    return bool(one["seen"] or one["before"])


def _claim(one: dict[str, Any]) -> str:
    """Return a claim as an item of a list: its sentence, the paper's number, and the reason."""
    number = f" The paper: {one['number']}." if one["number"] else ""
    mark = " †" if _changed(one) else ""
    return f"- **{one['says']}**{mark}{number} *Here: {one['reason']}.* (`{one['name']}`)"


def comparisons(paper: Paper, claims: Claims) -> str:
    """Return the page with every comparison of a paper's claims."""
    lines = [
        f"# {paper.paper}: all comparisons",
        "",
        f"This page has every comparison behind the verdicts on [{paper.paper}]({stem(paper)}.md).",
        "",
        "An effect is a relative error reduction in %, positive as the claim says, with half of "
        "its 95 % interval; *detectable* is the smallest effect that the runs can find.",
    ]
    for one in claims:
        lines += ["", f"## {one['name']}", "", one["says"], ""]
        lines += [f"Source: {one['section']}. Verdict: {one['verdict']}, because {one['reason']}."]
        if one["reading"]:
            lines += ["", f"Reading: {one['reading']}"]
        rows = [
            (
                f"{test['above']} against {test['below']}",
                test["column"],
                _effect(test),
                percent(test["paper"]),
                percent(test["mde"]),
                test["side"] if not test["unfair"] else f"not fair: {test['unfair']}",
                test["table"],
            )
            for test in one["tests"]
        ]
        if rows:
            header = ("comparison", "column", "effect", "paper's", "detectable", "side", "table")
            lines += ["", markdown(Table(header, rows, "llrrrll"))]
    return "\n".join(lines) + "\n"


def _effect(test: dict[str, Any]) -> str:
    """Return the effect of a comparison with half of its interval, or a dash."""
    return (
        f"{percent(test['effect'])} ± {percent(test['width'])}" if test["effect"] else percent(None)
    )
