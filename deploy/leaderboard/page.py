"""Views of the leaderboard: tables for a terminal, an HTML page with filters, and a picture."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

from common.files import write_all
from deploy.leaderboard.board import Board, runs_of_a_row
from deploy.leaderboard.protocol import LIMITS, PERSONAL, Protocol
from deploy.leaderboard.ranking import GLOBAL, Section, Standing, compared
from deploy.report.style import Card, Page, frame, render_sortable, save, series, single, style
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
SHOWN = 10  #: most rows of a picture


@final
@dataclass(frozen=True)
class Column:
    """A column: its text of a row, and the number by which the page sorts it."""

    name: str
    text: Callable[[Standing], Cell]
    value: Callable[[Standing], float | None]


def _position(score: str) -> Column:
    def text(one: Standing) -> Cell:
        place = one.positions.get(score)
        return Cell(NONE if place is None else f"{place.best}–{place.worst}")

    def value(one: Standing) -> float | None:
        place = one.positions.get(score)
        return None if place is None else (place.best + place.worst) / 2

    return Column(f"positions, {SCORES[score]}", text, value)


def _score(score: str) -> Column:
    def text(one: Standing) -> Cell:
        place, mean = one.positions.get(score), one.values.get(score)
        told = place is not None and place.low < place.high
        asides = [f"{100 * place.low:.1f}–{100 * place.high:.1f}"] if place and told else []
        if score == PERSONAL:
            asides += ["tuned for the global score"] * one.for_global
            by = one.values.get("by prototypes")
            asides += [] if by is None else [f"{percent(by)} by prototypes"]
        return Cell(percent(mean), ", ".join(asides))

    return Column(SCORES[score], text, lambda one: one.values.get(score))


def _number(name: str, key: str, shown: Callable[[float | None], str]) -> Column:
    return Column(
        name, lambda one: Cell(shown(one.values.get(key))), lambda one: one.values.get(key)
    )


def _operations(value: float | None) -> str:
    return NONE if value is None else operations(int(value))


COSTS = (
    _number("worst client", "worst", percent),
    _number("bytes a round", "bytes a round", size),
    _number("operations", "flops", _operations),
    _number("largest client's memory", "memory", size),
)


def columns(protocol: Protocol) -> list[Column]:
    """Return the columns of a board: each score, also at its budget's limits, then the costs."""
    shown = list[Column]()
    for score, name in SCORES.items():
        shown += [_position(score), _score(score)]
        for key in protocol.budget.limits:
            shown.append(
                _number(f"{name} at equal {LIMITS[key].name}", f"{score} at {key}", percent)
            )
    return [*shown, *COSTS]


def title(section: Section, one_shot: bool) -> str:
    """Return the heading of a section's table."""
    return f"{section.fleet}, {section.skew}" + (", one-shot" if one_shot else "")


def ordered(section: Section, one_shot: bool) -> list[Standing]:
    """Return the rows of a table that have begun: by their global, then their personal mean."""
    rows = [one for one in section.standings if one.begun and one.place.one_shot == one_shot]

    def key(one: Standing) -> list[tuple[bool, float]]:
        return [(score not in one.positions, -_mean(score, one)) for score in SCORES]

    return sorted(rows, key=key)


def table(section: Section, one_shot: bool) -> Table:
    """Return the table of a section; ``one_shot``: of its one-shot methods, else of the others."""
    rows, shown = ordered(section, one_shot), columns(section.protocol)
    header = ["", *(column.name for column in shown), "leaves a client", "protocol"]
    version = f"{section.protocol.name}, version {section.protocol.version}"
    lines: list[list[str | Cell]] = [
        [_name(one), *(column.text(one) for column in shown), clean(one.place.sends), version]
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
    base, each, limits = protocol.base, len(protocol.tuning.seeds), protocol.budget.limits
    number, seeds = len(protocol.partitions), f"{len(protocol.seeds)} seeds"
    runs = f"{len(protocol.runs)} runs: "
    if protocol.paired:
        runs += f"one seed on each of {number} partitions. Repetitions are these runs"
    else:
        runs += f"{seeds} on {number} partitions. Repetitions are the seeds, on these partitions"
    edge = f", and up to {protocol.edge} rates beyond the edge if the best one is there"
    return [
        f"Protocol of the board {protocol.name}, version {protocol.version}: {protocol.title}, "
        f"{base['train.epochs']} local epochs, {base['data.samples']} training samples.",
        "Fleets: " + "; ".join(f"{name}: {it.about}" for name, it in protocol.fleet.items()) + ".",
        f"Each method tries {len(protocol.rates)} configurations on validation samples "
        f"({protocol.tuning.skew}, a partition of its own, {each} seed{'s' * (each > 1)}): "
        "learning rates, with values of its own settings if it has any"
        f"{edge if protocol.edge else ''}. A row takes at least {runs_of_a_row(protocol)} runs.",
        f"Numbers are means of {runs}. Beside a number is an interval: two rows of a table are "
        "told apart if theirs do not overlap. The positions are those that a row can have. In "
        "each column all positions hold together with 95 %.",
        " ".join(f"Equal {LIMITS[key].name}: {LIMITS[key].about(x)}." for key, x in limits.items())
        + f" {'Both' if len(limits) == 2 else 'All'} are what FedAvg of the smallest mixed network "
        "needs.",
        "Global: the server's model on its test set. Personal: the clients' models on their own "
        "test samples. One-shot methods, with all clients in one round, have tables of their own.",
        *(f"{row.name} is not on the board: {row.omitted}." for row in protocol.row if row.omitted),
    ]


def pairs(found: Sequence[Section]) -> Table:
    """Return the differences of the protocol's pairs, as far as both rows are complete.

    A difference is only said to be decided if its sign stays when all are corrected together.
    """
    header = ["", "compared with", "on", "score", "difference", "decided"]
    lines: list[list[str | Cell]] = [
        [
            clean(one.pair.row),
            clean(one.pair.other),
            f"{one.pair.fleet}, {one.skew}",
            one.pair.score,
            f"{100 * one.difference.mean:+.1f} ± {100 * one.difference.half:.1f}",
            ("above" if one.difference.mean > 0 else "below") if one.difference.decided else NONE,
        ]
        for one in compared(found)
    ]
    return Table(header, lines, title="Named pairs", align="llllrl")


def pairs_lead(found: Sequence[Section]) -> str:
    """Return what the table of pairs says."""
    return (
        "Points of accuracy, with the 95 % interval of each pair alone (Student's t over the "
        f"repetitions). All {len(compared(found))} are corrected together (Holm): without true "
        "differences at most 5 % of boards have a decided pair."
    )


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
    protocol, wanted = board.protocol, len(board.places)
    of_board = columns(protocol)
    numbers = [[_numbers(one, of_board) for one in ordered(*pair)] for pair in shown]
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
            *_pair_section(found),
            single("Protocol", text=" ".join(protocol_lines(protocol))),
        ],
    )
    data = json.dumps(numbers).replace("<", "\\u003c")  # no text of a row can end the script
    script = f"const TABLES = {data};\n" + (HERE / SCRIPT).read_text(encoding="utf-8")
    return render_sortable(page, script)


def _pair_section(found: Sequence[Section]) -> list[PageSection]:
    named = pairs(found)
    shown = replace(named, title="")
    return [single(named.title, pairs_lead(found), table=shown)] if named.rows else []


def _numbers(one: Standing, shown: Sequence[Column]) -> dict[str, object]:
    """Return the numbers of a row by which the page's script sorts and filters."""
    return {
        "sort": [one.place.row.name, *(column.value(one) for column in shown)],
        "public": one.place.public,
        "oneShot": one.place.one_shot,
        "bytes": one.values.get("bytes a round"),
        "memory": one.values.get("memory"),
    }


def picture(found: Sequence[Section], path: Path) -> bool:
    """Draw the personal means with their intervals in the section with the most rows.

    Only the ten best rows are there, so that the picture is legible on a small screen, and one of
    two rows that share their runs. Return whether there are any.
    """
    most = max(found, key=lambda section: len(section.ranked), default=None)
    ranked = [one for one in most.standings if PERSONAL in one.positions] if most else []
    ranked = [one for one in ranked if not one.place.one_shot]
    if most is None or not ranked:
        return False
    ranked = list({one.grid[PERSONAL].tobytes(): one for one in reversed(ranked)}.values())
    best = sorted(ranked, key=partial(_mean, PERSONAL))[-SHOWN:]
    with style():
        figure, axes = frame((5.0, 0.36 * len(best) + 1.5))
        for y, one in enumerate(best):
            place, colour = one.positions[PERSONAL], series(2 if one.place.row.reference else 0)
            axes.plot([100 * place.low, 100 * place.high], [y, y], color=colour, linewidth=2.4)
            axes.plot(100 * _mean(PERSONAL, one), y, "o", color=colour, markersize=6)
        axes.set_yticks(range(len(best)), [_name(one) for one in best], fontsize=11)
        axes.set_ylim(-0.6, len(best) - 0.4)
        axes.tick_params(axis="x", labelsize=11)
        axes.set_xlabel("accuracy of the clients' own models, %", fontsize=11, loc="right")
        lines = f"{len(best)} best of {len(ranked)} rows: {title(most, False)}"
        figure.suptitle(f"{lines}\nIntervals that overlap are not told apart", fontsize=11)
        save(figure, path)
    return True


def _mean(score: str, one: Standing) -> float:
    return one.values.get(score) or 0.0


def text(board: Board, found: Sequence[Section]) -> str:
    """Return the protocol, the tables and what is missing as Markdown."""
    lines = [f"# Leaderboard: {board.protocol.title}", ""]
    lines += [
        "This page has the protocol, the rows with their possible positions, and what is missing.",
        "",
    ]
    lines += [f"- {line}" for line in protocol_lines(board.protocol)]
    for part in tables(found):
        lines += ["", f"## {title(*part)}", "", markdown(untitled(*part)).rstrip()]
    if (named := pairs(found)).rows:
        table_ = markdown(replace(named, title="")).rstrip()
        lines += ["", f"## {named.title}", "", pairs_lead(found), "", table_]
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
    """Return the rows of all sections with their numbers, positions, and missing cells."""
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
            "tuned_for_global": one.for_global,
            "positions": {SCORES[score]: vars(it) for score, it in one.positions.items()},
        }
        for section in found
        for one in section.standings
    ]
