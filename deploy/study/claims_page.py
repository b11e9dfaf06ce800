"""Render the judged claims as a page with pictures, as Markdown, as JSON and for the terminal."""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.files import write_atomically
from deploy.report import table as rendering
from deploy.report.style import INK, MUTED, Card, Page, Section, frame, render, series, style
from deploy.report.table import NONE, Table, clean
from deploy.study.claims import SEEDS, Claim, Judged, Tested, Verdict

BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
COLOURS = {Verdict.HOLDS: 2, Verdict.OPPOSITE: 1, Verdict.UNDECIDED: 7}
LEAD = (
    "One line for each sentence of the abstracts, contributions and conclusions that a measurement "
    "can decide, and for some that the text draws from its tables, by "
    "recorded runs at CPU scale. The rule was fixed first: a claim holds if the 95 % interval of "
    "the difference, seed by seed over five seeds (ten if five leave it open), lies where the "
    "claim puts it, it does not hold if the interval lies elsewhere, and is undecided in between. "
    "A sentence about several things holds if all do, and fails with the first that does not. "
    "A claim with † was written down or changed when its runs were there already."
)


def summary(judged: Sequence[Judged]) -> Table:
    """Return a table with a row for each claim."""
    rows = []
    for one in judged:
        claim = one.claim
        texts = (
            clean(claim.section, 200),
            clean(claim.says, 400),
            clean(claim.number, 200) or NONE,
        )
        rows.append((one.paper, *texts, _verdict(one), _basis(one)))
    header = ("paper", "section", "claim", "the paper's number", "verdict", "by")
    return Table(header, rows, "l")


def short(judged: Sequence[Judged]) -> Table:
    """Return a table with a row for each claim, short enough for a terminal."""
    rows = [(one.claim.name, _verdict(one), _basis(one)) for one in judged]
    return Table(("claim", "verdict", "by"), rows, "l")


def tests(judged: Sequence[Judged]) -> Table:
    """Return a table with a row for each comparison behind the claims."""
    rows = []
    for name, test in [(one.claim.name, test) for one in judged for test in one.tests]:
        compared = clean(f"{test.above} against {test.below}, {test.column}", 200)
        decision = (interval(test), str(test.decision.seeds), str(test.decision.verdict))
        rows.append((name, compared, *decision, _holm(test), test.table))
    header = ("claim", "comparison", "difference", "seeds", "verdict", "after Holm", "table")
    notes = [
        "Difference: the mean over seeds ± half of its 95 % interval (Student's t), positive "
        "where it is as the claim says; in percent more for claims of size.",
        "After Holm: whether the verdict remains when all comparisons here are to be right "
        "together at 95 %.",
    ]
    return Table(header, rows, align="llrrlll", notes=notes)


def interval(test: Tested) -> str:
    """Return ``1.2 ± 0.4``, the mean alone without an interval, or a dash without a mean."""
    mean, half = test.decision.mean, test.decision.interval
    if mean is None:
        return NONE
    return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"


def _holm(test: Tested) -> str:
    if test.decision.verdict is Verdict.UNDECIDED:
        return NONE
    return "remains" if test.kept else "does not remain"


def _verdict(one: Judged) -> str:
    return f"{one.verdict}{' †' if one.claim.seen else ''}{', stale' if one.stale else ''}"


def _basis(one: Judged) -> str:
    """Return the tables and comparisons behind a verdict, or what is missing for one."""
    claim = one.claim
    if claim.needs:
        return clean(f"needs {claim.needs}", 300)
    tables = dict.fromkeys(test.table for test in one.tests)
    count = Counter(
        str(test.decision.verdict) if test.decision.seeds >= SEEDS else "without five seeds"
        for test in one.tests
    )
    counts = ", ".join(f"{n} {verdict}" for verdict, n in count.items())
    return f"{', '.join(tables)}: {counts}"


def picture(judged: Sequence[Judged]) -> Figure:
    """Plot each comparison's difference with its interval, claim by claim, and a line at 0."""
    lines = [(one, test) for one in judged for test in one.tests]
    with style():
        figure, axes = frame((9.0, 0.24 * len(lines) + 0.35 * len(judged) + 0.8))
        y, labels = 0.0, []
        for one in judged:
            y += 1.3
            heading = textwrap.shorten(one.claim.says, 95, placeholder=" …")
            axes.text(0.0, y, heading, transform=axes.get_yaxis_transform(), color=INK, va="center")
            for test in one.tests:
                y += 1.0
                labels.append((y, _label(test, one.tests)))
                _mark(axes, y, test, one.claim)
        axes.set_yticks([at for at, _ in labels], [text for _, text in labels], fontsize=7.5)
        axes.set_ylim(y + 1.0, 0.2)
        axes.axvline(0.0, color=MUTED, linewidth=0.8)
        axes.set_xlabel("difference in the table's unit, positive as the claim says; sizes in %")
        axes.grid(visible=False, axis="y")
    return figure


def _label(test: Tested, claim: Sequence[Tested]) -> str:
    """Return a label that distinguishes a comparison from the others of its ``claim``."""
    several_above = len({other.above for other in claim}) > 1
    several_below = len({other.below for other in claim}) > 1
    label = test.above if several_above else test.below
    if several_above and several_below:
        label = f"{test.above} against {test.below}"
    if len({other.table for other in claim}) > 1:
        label += f" ({test.table})"
    return clean(f"{label}, {test.column}", 90)


def _mark(axes: Axes, y: float, test: Tested, claim: Claim) -> None:
    """Draw a point with its interval, and the claim's region if it is bounded on both sides."""
    region, decision = claim.region, test.decision
    if math.isfinite(region.low) and math.isfinite(region.high):
        axes.plot([region.low, region.high], [y, y], color=series(5), linewidth=6, alpha=0.35)
    if decision.mean is not None:
        colour = series(COLOURS[decision.verdict])
        axes.errorbar(decision.mean, y, xerr=decision.interval, fmt="o", color=colour, markersize=4)


def page(judged: Sequence[Judged]) -> str:
    """Return one HTML document: the verdicts, then a picture and the numbers for each paper."""
    count = Counter(one.verdict for one in judged)
    papers = list(dict.fromkeys(one.paper for one in judged))
    stale = [one for one in judged if one.stale]
    sections = [Section("Verdicts", [Card("", table=summary(judged), span=12)], LEAD)]
    for paper in papers:
        tested = [one for one in judged if one.paper == paper and one.tests]
        if tested:
            alt = "; ".join(
                f"{one.claim.name}: {test.below}, {test.column}: {interval(test)}"
                for one in tested
                for test in one.tests
            )
            card = Card("", figure=picture(tested), alt=alt, behind=tests(tested), span=12)
            sections.append(Section(paper, [card]))
    return render(
        Page(
            title="The papers' claims",
            subtitle="against recorded runs at CPU scale",
            state="failed" if stale else "done",
            pill=f"{len(stale)} stale" if stale else f"{len(judged)} claims",
            tiles=[(str(verdict), str(count[verdict]), "") for verdict in Verdict],
            notes=[f"{one.claim.name}: {', '.join(one.stale)} is stale" for one in stale],
            sections=sections,
        )
    )


def markdown(judged: Sequence[Judged]) -> str:
    """Return the verdicts and the comparisons behind them as Markdown."""
    return f"{LEAD}\n\n{rendering.markdown(summary(judged))}\n\n{rendering.markdown(tests(judged))}"


def as_json(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """Return all claims, verdicts and tests as JSON values."""
    return [
        {
            "paper": one.paper,
            **one.claim.model_dump(include={"name", "section", "says", "number", "kind", "seen"}),
            "verdict": str(one.verdict),
            "stale": list(one.stale),
            "needs": one.claim.needs,
            "tests": [_test(test) for test in one.tests],
        }
        for one in judged
    ]


def _test(test: Tested) -> dict[str, object]:
    fields = asdict(test)
    decision, kept = fields.pop("decision"), fields.pop("kept")
    return {**fields, **decision, "after_holm": kept}


def write(judged: Sequence[Judged], folder: Path) -> list[Path]:
    """Write ``claims.html``, ``claims.md`` and ``claims.json`` in ``folder``; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "claims.html": page(judged),
        "claims.md": markdown(judged),
        "claims.json": json.dumps(as_json(judged), indent=1, ensure_ascii=False),
    }
    for name, text in texts.items():
        write_atomically(folder / name, (text + "\n").encode())
    return [folder / name for name in texts]


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


def into(judged: Sequence[Judged], document: Path) -> None:
    """Replace the text between the two marks of ``document``. Raises as ``around_marks``."""
    before, after = around_marks(document)
    text = f"{before}{BEGIN}\n{markdown(judged)}\n{END}{after}"
    write_atomically(document, text.encode())
