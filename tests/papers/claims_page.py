"""Render the judged claims: a summary and a forest plot for each paper, the rest as JSON."""

import hashlib
import json
import math
import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from common.files import write_atomically
from deploy.report.style import INK, MUTED, PAPER, frame, series, style
from deploy.report.table import NONE, Table, clean
from tests.papers.judging import Claim, Judged, Paper, Tested, Verdict

BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
COLOURS = {Verdict.REPRODUCED: 2, Verdict.CONTRADICTED: 1, Verdict.NO_POWER: 0}
EDGE = 100.0  #: end of a plot's axis in %; a triangle marks an effect beyond it
Papers = Sequence[tuple[Paper, Sequence[Judged]]]


def find(papers: Sequence[Paper], name: str) -> Paper:
    """Return the paper called ``name``, without regard to case and punctuation.

    Raises ``ValueError`` for an unknown paper.
    """
    known = {stem(paper): paper for paper in papers}
    if named(name) not in known:
        raise ValueError(f"{name!r} is no paper with claims; allowed: {', '.join(known)}")
    return known[named(name)]


def stem(paper: Paper) -> str:
    """Return the name of a paper in file names and commands."""
    return named(paper.paper)


def named(name: str) -> str:
    """Return a paper's name as file names and commands have it."""
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")


def short(judged: Sequence[Judged]) -> Table:
    """Return a row for each claim with its verdict and the reason."""
    rows = [(one.claim.name, verdict(one), clean(one.reason, 200)) for one in judged]
    return Table(("claim", "verdict", "because"), rows, "l")


def effects(judged: Sequence[Judged]) -> Table:
    """Return a row for each claim with its weakest comparison: effects in %, and the table."""
    rows = []
    for one in judged:
        if (test := weakest(one)) is not None:
            numbers = (effect(test), percent(test.paper), percent(test.mde))
            compared = clean(f"{test.above} against {test.below}, {test.column}", 120)
            rows.append((one.claim.name, compared, *numbers, test.table))
    header = ("claim", "weakest comparison", "effect", "paper's", "detectable", "table")
    return Table(header, rows, "llrrrl")


def verdict(one: Judged) -> str:
    """Return the verdict with † for a changed claim, and whether a record is stale."""
    return f"{one.verdict}{' †' if one.claim.changed else ''}{', stale' if one.stale else ''}"


def percent(value: float | None) -> str:
    """Return a number of % with three digits, or a dash."""
    return NONE if value is None else f"{value:.3g}"


def effect(test: Tested) -> str:
    """Return the relative error reduction in % with its interval, ``12 ± 4``, or a dash."""
    return NONE if test.effect is None else f"{test.effect:.3g} ± {test.width:.2g}"


def weakest(one: Judged) -> Tested | None:
    """Return the comparison that supports a claim least, of the fair ones if there are any.

    The largest difference is the weakest support for "comparable". None: nothing is recorded.
    """
    measured = [test for test in one.tests if test.effect is not None]
    fair = [test for test in measured if not test.unfair]

    def support(test: Tested) -> float:
        assert test.effect is not None
        return -abs(test.effect) if one.claim.kind == "comparable" else test.effect

    return min(fair or measured, key=support, default=None)


def label(claim: Claim) -> str:
    """Return a claim's name and the region that it claims, if that is not "above 0"."""
    low, high = claim.region.low, claim.region.high
    if claim.kind == "comparable":
        return f"{claim.name} (±{high:g} points)"
    if claim.kind == "size":
        return f"{claim.name} ({f'≥ {low:g}' if math.isinf(high) else f'≤ {high:g}'} %)"
    return claim.name


def picture(judged: Sequence[Judged]) -> Figure:
    """Plot each claim's weakest comparison, the paper's effect and the detectable one."""
    lines = [(one, test) for one in judged if (test := weakest(one)) is not None]
    with style():
        figure, axes = frame((9.0, 0.3 * len(lines) + 0.9))
        for y, (one, test) in enumerate(lines):
            colour = MUTED if test.unfair else series(COLOURS.get(one.verdict, 7))
            assert test.effect is not None and test.width is not None and test.mde is not None
            mde = min(test.mde, EDGE)
            axes.barh(y, 2 * mde, left=-mde, height=0.8, color=series(5), alpha=0.18, zorder=0)
            ends = [_inside(test.effect + sign * test.width) for sign in (-1, 1)]
            axes.plot(ends, [y, y], color=colour, linewidth=1.6)
            others = [_inside(t.effect) for t in one.tests if t.effect is not None]
            axes.plot(others, [y] * len(others), "|", color=colour, markersize=6, alpha=0.5)
            marker = "o" if abs(test.effect) <= EDGE else "<" if test.effect < 0 else ">"
            axes.plot(_inside(test.effect), y, marker, color=colour, markersize=5.5)
            if test.paper is not None:
                axes.plot(_inside(test.paper), y, "D", mfc="none", mec=INK, markersize=6)
            right = axes.get_yaxis_transform()
            axes.text(1.01, y, verdict(one), color=colour, transform=right, va="center", fontsize=8)
        axes.set_yticks(range(len(lines)), [label(one.claim) for one, _ in lines], fontsize=8)
        axes.set(xlim=(-EDGE - 3, EDGE + 3), ylim=(len(lines) - 0.4, -0.6))
        axes.axvline(0.0, color=MUTED, linewidth=0.8)
        axes.set_xlabel("relative error reduction in %, positive as the claim says")
        axes.grid(visible=False, axis="y")
    return figure


def _inside(value: float) -> float:
    return max(-EDGE, min(EDGE, value))


def sentences(paper: Paper) -> str:
    """Return what was run, what differs from the paper and what follows."""
    return f"{paper.ran} {paper.differs} {paper.conclusion}"


def markdown(papers: Papers, pictures: str) -> str:
    """Return each paper's conclusion, counts of verdicts, plot and records as Markdown.

    ``pictures``: the folder of the plots as the document names it.
    """
    parts = []
    for paper, judged in papers:
        verdicts = [one.verdict for one in judged]
        counts = [f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts]
        parts += [f"### Claims of {paper.paper}", f"{paper.conclusion} {paper.differs}"]
        parts += [f"Verdicts: {', '.join(counts)}."]
        parts += [f"![Effects: {paper.paper}]({pictures}/{stem(paper)}.png)"]
        measured = {t.table for one in judged for t in one.tests if t.effect is not None}
        known = [name for name in paper.tables if name in measured.union(paper.records)]
        above = posixpath.normpath(f"{pictures}/..")
        parts += [f"Records: {', '.join(f'[{n}]({above}/{n}/{n}.md)' for n in known)}."]
    parts += [f"Sentences, conditions, comparisons and reasons: [JSON]({pictures}/claims.json)."]
    return "\n\n".join(parts)


def as_json(papers: Papers) -> list[dict[str, object]]:
    """Return all claims, verdicts and comparisons as JSON values; infinite bounds are null."""
    return [
        {
            "paper": paper.paper,
            **one.claim.model_dump(exclude={"test", "range"}),
            "range": one.claim.range and [b if math.isfinite(b) else None for b in one.claim.range],
            "verdict": str(one.verdict),
            "reason": one.reason,
            "stale": list(one.stale),
            "tests": [_test(test) for test in one.tests],
        }
        for paper, judged in papers
        for one in judged
    ]


def _test(test: Tested) -> dict[str, object]:
    fields = asdict(test)
    fields |= fields.pop("decision")  # the last digits depend on the machine's libraries
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in fields.items()}


def digest(papers: Papers) -> str:
    """Return the SHA-256 of everything that is known of the claims."""
    return hashlib.sha256(json.dumps(as_json(papers)).encode()).hexdigest()


def write(papers: Papers, folder: Path) -> list[Path]:
    """Write ``claims.md``, ``claims.json`` and a plot of each paper; return the paths.

    The metadata of a plot have the ``digest`` of its claims, so that a test can find an old plot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(as_json(papers), indent=1, ensure_ascii=False)
    texts = {"claims.md": markdown(papers, "."), "claims.json": numbers}
    for name, text in texts.items():
        write_atomically(folder / name, (text + "\n").encode())
    for one in papers:
        path, known = folder / f"{stem(one[0])}.png", {"Description": digest([one])}
        with style():
            picture(one[1]).savefig(path, format="png", dpi=100, facecolor=PAPER, metadata=known)
    return [folder / name for name in (*texts, *(f"{stem(paper)}.png" for paper, _ in papers))]


def around_marks(document: Path) -> tuple[str, str]:
    """Return the text before and after the two marks of ``document``.

    Raises ``ValueError`` if the document cannot be read or lacks the marks.
    """
    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--into {document}: not a readable text file with marks") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"--into {document}: the file lacks {BEGIN} or, after it, {END}")
    return before, after


def into(papers: Papers, document: Path, folder: Path) -> None:
    """Replace the text between the two marks of ``document``; the plots are in ``folder``.

    Raises as ``around_marks``.
    """
    before, after = around_marks(document)
    pictures = Path(os.path.relpath(folder, document.parent)).as_posix()
    text = f"{before}{BEGIN}\n{markdown(papers, pictures)}\n{END}{after}"
    write_atomically(document, text.encode())
