"""Views of the leaderboard: tables for a terminal, an HTML page with filters, and a picture."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from common.files import write_all
from deploy.leaderboard.board import Board
from deploy.leaderboard.protocol import Protocol
from deploy.leaderboard.ranking import GLOBAL, PERSONAL, Section, Standing
from deploy.report.style import Card, Page, frames, render_sortable, save, series, single, style
from deploy.report.style import Section as PageSection
from deploy.report.table import (
    HERE,
    NONE,
    Cell,
    Table,
    clean,
    markdown,
    operations,
    percent,
    size,
)
from deploy.study.sweep import name as name_of

SCRIPT = "leaderboard.js"
SCORES = {GLOBAL: "global", PERSONAL: "personal"}
REASONS = 3  #: most missing or failed cells that are named for a row


@final
@dataclass(frozen=True)
class Column:
    """A column: its text of a row, and the number by which the page sorts it."""

    name: str
    text: Callable[[Standing], Cell]
    value: Callable[[Standing], float | None]


def _rank(score: str) -> Column:
    def text(one: Standing) -> Cell:
        rank = one.ranks.get(score)
        if rank is None:
            return Cell(NONE)
        return Cell(str(rank.rank), f"{rank.best}–{rank.worst}", best=rank.rank == 1)

    return Column(
        f"rank, {SCORES[score]}", text, lambda one: getattr(one.ranks.get(score), "rank", None)
    )


def _score(score: str) -> Column:
    def text(one: Standing) -> Cell:
        rank, mean = one.ranks.get(score), one.values[score]
        between = "" if rank is None else f"{100 * rank.low:.1f}–{100 * rank.high:.1f}"
        return Cell(percent(mean), between)

    return Column(SCORES[score], text, lambda one: one.values[score])


def _number(name: str, key: str, shown: Callable[[float | None], str]) -> Column:
    return Column(
        name, lambda one: Cell(shown(one.values.get(key))), lambda one: one.values.get(key)
    )


def _operations(value: float | None) -> str:
    return NONE if value is None else operations(int(value))


COLUMNS = [
    _rank(GLOBAL),
    _score(GLOBAL),
    _number("global at equal bytes", f"{GLOBAL} at bytes", percent),
    _number("global at equal operations", f"{GLOBAL} at flops", percent),
    _rank(PERSONAL),
    _score(PERSONAL),
    _number("personal at equal bytes", f"{PERSONAL} at bytes", percent),
    _number("personal at equal operations", f"{PERSONAL} at flops", percent),
    _number("worst client", "worst", percent),
    _number("bytes a round", "bytes a round", size),
    _number("operations", "flops", _operations),
    _number("largest client's memory", "memory", size),
]


def title(section: Section, one_shot: bool) -> str:
    """Return the heading of a section's table."""
    return f"{section.fleet}, {section.skew}" + (", one-shot" if one_shot else "")


def ordered(section: Section, one_shot: bool) -> list[Standing]:
    """Return the rows of a table that have begun: by global, then by personal rank and mean."""
    rows = [one for one in section.standings if one.begun and one.place.one_shot == one_shot]

    def key(one: Standing) -> list[tuple[float, float]]:
        return [
            (one.ranks[score].rank, -_mean(score, one)) if score in one.ranks else (math.inf, 0.0)
            for score in SCORES
        ]

    return sorted(rows, key=key)


def table(section: Section, one_shot: bool) -> Table:
    """Return the table of a section; ``one_shot``: of its one-shot methods, else of the others."""
    rows = ordered(section, one_shot)
    header = ["", *(column.name for column in COLUMNS), "leaves a client", "protocol"]
    version = f"{section.protocol.name}, version {section.protocol.version}"
    lines: list[list[str | Cell]] = [
        [_name(one), *(column.text(one) for column in COLUMNS), clean(one.place.sends), version]
        for one in rows
    ]
    return Table(header, lines, title=title(section, one_shot), align="lr")


def untitled(section: Section, one_shot: bool) -> Table:
    """Return the table of a section for a page that has its heading."""
    return replace(table(section, one_shot), title="")


def _name(one: Standing) -> str:
    marks = ["public set"] * one.place.public + ["reference"] * one.place.row.reference
    marks += ["added by a user"] * one.place.added
    marks += ["incomplete"] * bool(one.missing) + ["did not finish"] * bool(one.failed)
    name = clean(one.place.row.name)
    return f"{name} ({', '.join(marks)})" if marks else name


def protocol_lines(protocol: Protocol) -> list[str]:
    """Return the protocol in sentences."""
    runs = len(protocol.seeds) * len(protocol.partitions)
    base = protocol.base
    return [
        f"Protocol of the board {protocol.name}, version {protocol.version}: {protocol.title}, "
        f"{base['train.epochs']} local epochs, {base['data.samples']} training samples.",
        "Fleets: " + "; ".join(f"{name}: {it.about}" for name, it in protocol.fleet.items()) + ".",
        f"Each method tries {len(protocol.rates)} configurations on validation samples "
        f"({protocol.tuning.skew}, a partition of its own): learning rates, with values of its "
        "own settings if it has any.",
        f"Numbers are means of {runs} runs: {len(protocol.seeds)} seeds on "
        f"{len(protocol.partitions)} partitions. A method is better than another if the 95 % "
        "bootstrap interval of the difference is above 0, over seeds and partitions. Those that "
        "the first of a group is not better than share its rank; beside it are the possible "
        "positions.",
        f"Equal bytes: {size(protocol.budget.bytes)} of all clients in all rounds. Equal "
        f"operations: {operations(int(protocol.budget.flops))} of training. Both are what FedAvg "
        "of the smallest mixed network needs.",
        "Global: the server's model on its test set. Personal: the clients' models on their own "
        "test samples. One-shot methods, with all clients in one round, have tables of their own.",
        *(f"{row.name} is not on the board: {row.omitted}." for row in protocol.row if row.omitted),
    ]


def incomplete(found: Sequence[Section]) -> list[str]:
    """Return lines that name what is missing, did not finish or was given up.

    Lines that are equal for each skew of a fleet are there once.
    """
    lines = list[str]()
    for section in found:
        if later := [clean(one.place.row.name) for one in section.standings if not one.begun]:
            of = f"{len(later)} of {len(section.standings)} rows"
            lines.append(f"{section.fleet}: {of} not run yet: {', '.join(later)}")
        for one in section.standings:
            tried = [name_of(flat) for flat in one.given_up]
            for where, what, listed in (
                (title(section, False), "missing", one.missing),
                (title(section, False), "did not finish", one.failed),
                (section.fleet, "given up, because a run did not finish", tried),
            ):
                if listed and one.begun:
                    more = f"; and {len(listed) - REASONS} more" if len(listed) > REASONS else ""
                    first = "; ".join(clean(it) for it in listed[:REASONS])
                    lines.append(f"{where}: {clean(one.place.row.name)}: {what}: {first}{more}")
    return list(dict.fromkeys(lines))


def tables(found: Sequence[Section]) -> list[tuple[Section, bool]]:
    """Return the sections with rows that have begun, each twice if one-shot methods have."""
    return [
        (section, one_shot)
        for section in found
        for one_shot in (False, True)
        if ordered(section, one_shot)
    ]


def html(board: Board, found: Sequence[Section]) -> str:
    """Return a page whose tables can be sorted, and filtered by constraints."""
    shown = tables(found)
    cards = [Card(title(*pair), table=untitled(*pair), span=12) for pair in shown]
    numbers = [[_numbers(one) for one in ordered(*pair)] for pair in shown]
    protocol, wanted = board.protocol, len(board.places)
    open_ = {o.place.name for section in found for o in section.standings if not o.complete}
    complete = wanted - len(open_)
    page = Page(
        title="Leaderboard",
        subtitle=f"{protocol.title} · board {protocol.name}, version {protocol.version}",
        state="open" if open_ else "done",
        pill=f"{complete} of {wanted} rows complete" if open_ else "complete",
        notes=incomplete(found),
        sections=[
            PageSection("Methods", cards),
            single("Protocol", text=" ".join(protocol_lines(protocol))),
        ],
    )
    data = json.dumps(numbers).replace("<", "\\u003c")  # no text of a row can end the script
    script = f"const TABLES = {data};\n" + (HERE / SCRIPT).read_text(encoding="utf-8")
    return render_sortable(page, script)


def _numbers(one: Standing) -> dict[str, object]:
    """Return the numbers of a row by which the page's script sorts and filters."""
    return {
        "sort": [one.place.row.name, *(column.value(one) for column in COLUMNS)],
        "public": one.place.public,
        "oneShot": one.place.one_shot,
        "bytes": one.values.get("bytes a round"),
        "memory": one.values.get("memory"),
    }


def picture(found: Sequence[Section], path: Path) -> bool:
    """Draw the scores of the fleet with the most ranked rows; return whether there are any."""
    most = max((len(section.ranked) for section in found), default=0)
    if not most:
        return False
    fleet = next(section.fleet for section in found if len(section.ranked) == most)
    shown = [section for section in found if section.fleet == fleet and section.ranked]
    with style():
        size_ = (4.6 * 2, (0.17 * most + 0.8) * len(shown))
        figure, axes = frames(size_, len(shown), len(SCORES))
        for section, line in zip(shown, axes, strict=True):
            for (score, word), place in zip(SCORES.items(), line, strict=True):
                ranked = [one for one in section.standings if score in one.ranks]
                ranked.sort(key=partial(_mean, score))
                for y, one in enumerate(ranked):
                    rank = one.ranks[score]
                    kind = 1 if one.place.one_shot else 2 if one.place.row.reference else 0
                    mean = 100 * (one.values[score] or 0.0)
                    ends = [100 * rank.low, 100 * rank.high]
                    place.plot(ends, [y, y], color=series(kind), linewidth=1.6)
                    place.plot(mean, y, "o", color=series(kind), markersize=3.6)
                names = [
                    clean(one.place.row.name) + " (public set)" * one.place.public for one in ranked
                ]
                place.set_yticks(range(len(ranked)), names, fontsize=6.5)
                place.set_ylim(-0.7, len(ranked) - 0.3)
                place.tick_params(axis="x", labelsize=8)
                place.set_xlabel("accuracy, %", fontsize=8)
                place.set_title(f"{word} score, {section.skew}", fontsize=9.5)
        note = "mean and 95 % interval; green: references, orange: one-shot methods"
        used = shown[0].protocol
        heading = f"{fleet} fleet, board {used.name}, protocol version {used.version}: {note}"
        figure.suptitle(heading, fontsize=9.0, x=0.01, ha="left")
        save(figure, path)
    return True


def _mean(score: str, one: Standing) -> float:
    return one.values[score] or 0.0


def text(board: Board, found: Sequence[Section]) -> str:
    """Return the protocol, the tables and what is missing as Markdown."""
    lines = [f"# Leaderboard: {board.protocol.title}", ""]
    lines += ["This page has the protocol, the rows with their ranks, and what is missing.", ""]
    lines += [f"- {line}" for line in protocol_lines(board.protocol)]
    for pair in tables(found):
        lines += ["", f"## {title(*pair)}", "", markdown(untitled(*pair)).rstrip()]
    if notes := incomplete(found):
        lines += ["", "## Not complete", "", *(f"- {line}" for line in notes)]
    return "\n".join(lines) + "\n"


def write_text(board: Board, found: Sequence[Section]) -> list[Path]:
    """Write the Markdown into the board's folder, and return its path."""
    return write_all(board.folder, {f"{board.protocol.label}.md": text(board, found)})


def write_html(board: Board, found: Sequence[Section], path: Path) -> list[Path]:
    """Write the page, and return its path."""
    return write_all(path.parent, {path.name: html(board, found)})


def as_json(found: Sequence[Section]) -> list[dict[str, object]]:
    """Return the rows of all sections with their numbers, ranks, and missing cells."""
    return [
        {
            "board": section.protocol.name,
            "version": section.protocol.version,
            "fleet": section.fleet,
            "skew": section.skew,
            "row": one.place.row.name,
            "public": one.place.public,
            "one_shot": one.place.one_shot,
            "sends": one.place.sends,
            "configuration": one.configuration,
            "missing": list(one.missing),
            "did_not_finish": list(one.failed),
            "given_up": list(one.given_up),
            **one.values,
            "ranks": {SCORES[score]: vars(rank) for score, rank in one.ranks.items()},
        }
        for section in found
        for one in section.standings
    ]
