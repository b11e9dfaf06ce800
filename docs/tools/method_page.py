"""A page for each method and the chooser, from contracts and halves."""

import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import final

from markupsafe import Markup, escape

import client_app.methods
import server_app.methods
from common import methods
from common.exchange.records import Records
from common.settings.facts import Facts
from common.settings.plugins import table_of
from common.settings.version import ROOT
from deploy import settings
from deploy.leaderboard import protocol as protocols
from deploy.leaderboard.board import Board, record
from deploy.leaderboard.page import columns, title
from deploy.leaderboard.ranking import Section, Standing, sections
from deploy.report.chooser import LEAVES, MODELS, NETWORKS, PUBLIC, QUESTIONS, ROUNDS
from deploy.report.listing import Setting, described
from deploy.report.table import Cell, Table, clean, markdown
from deploy.run.preflight import fresh, preflight
from docs.tools import equations, measure
from docs.tools.generate import scored
from docs.tools.measure import first_row

HERE = Path(__file__).parent
DEPTHS = ("fleet=cnn2,cnn3,cnn4",)
COMMANDS: tuple[tuple[str, ...], ...] = (
    (),
    ("data.public=0.2",),
    ("feature-dim=64",),
    ("rounds=6", "fedl2g.warm-up=2"),
    ("fleet=cnn2,cnn2@0.5", "score.bn=recalibrated"),
    DEPTHS,
    ("fleet=cnn4-exits1,cnn4-exits2,cnn4-exits3",),
    ("fleet=cnn2-lora4",),
)
"""Settings that the default experiment needs for a method; the first that suit it are shown."""


@final
@dataclass(frozen=True)
class Known:
    """A method's name, title such as "FedAvg", idea in one line, and facts.

    ``command``: settings of a short run.
    """

    name: str
    title: str
    idea: str
    facts: Facts
    command: tuple[str, ...]


def pages() -> dict[str, str]:
    """Return the chooser with its data, and the page of each method, as text by path."""
    every = [known(name) for name in methods.names()]
    found = {f"methods/{one.name}.md": page(one) for one in every}
    return {"methods/chooser.md": chooser(every), **found}


def known(name: str) -> Known:
    """Return what the page of a method shows of it."""
    title, _, idea = (methods.contract(name).__doc__ or "").partition("\n")[0].partition(": ")
    return Known(name, title, idea.rstrip("."), methods.facts(name), needed(name))


@functools.cache
def needed(name: str) -> tuple[str, ...]:
    """Return the settings with which the default experiment accepts a method.

    Raises ``ValueError`` if none of ``COMMANDS`` suits it.
    """
    error: ValueError | None = None
    in_depths = first_row(name).fleets == ["depths"]
    for extra in (DEPTHS, *COMMANDS) if in_depths else COMMANDS:
        flat = settings.resolve(settings.DEFAULT, [f"method={name}"])
        try:
            flat = settings.resolve(settings.DEFAULT, [f"method={name}", *extra])
            preflight(fresh(flat, "", Path("unused"))[0])
            return extra
        except ValueError as refused:
            error = refused
    raise ValueError(f"no settings of COMMANDS suit {name}: {error}")


@functools.cache
def kinds_of_input() -> dict[str, list[str]]:
    """Return the cells of docs/methods-shared.md about kinds of input, by method."""
    text = (ROOT / "docs" / "methods-shared.md").read_text(encoding="utf-8")
    section = text.split("## Kinds of input\n")[1].split("\n## ")[0]
    lines = (line.strip("|\n ").split(" | ") for line in section.splitlines() if line[:3] == "| `")
    return {name: cells[1:] for cells in lines for name in re.findall(r"`([\w-]+)`", cells[0])}


def chooser(every: Sequence[Known]) -> str:
    """Return the page of five questions. It lists the methods by the answers without a script."""
    lines = [
        "# Which method?",
        "This page shows the methods that fit your answers to any of five questions. It knows a",
        "method by the method's files; [all methods](../methods.md) says more.",
        "",
        '<form id="chooser" aria-label="Questions">',
    ]
    for key, (question, answers) in QUESTIONS.items():
        lines.append(f"<fieldset><legend>{question}</legend>")
        for value, text in {"": "any", **answers}.items():
            checked = "" if value else " checked"
            lines.append(
                f'<label><input type="radio" name="{key}" value="{value}"{checked}> {text}</label>'
            )
        lines.append("</fieldset>")
    lines += ["</form>", '<p id="count" role="status"></p>', '<ul id="fitting">']
    for one in every:
        data = " ".join(f'data-{key}="{" ".join(fits)}"' for key, fits in one.facts.answers.items())
        lines.append(
            f'<li {data}><a href="{one.name}.html">{escape(one.title)}</a>: {escape(one.idea)}</li>'
        )
    script = (HERE / "chooser.js").read_text(encoding="utf-8")
    return "\n".join([*lines, "</ul>", f"<script>\n{script}</script>"]) + "\n"


def page(one: Known) -> str:
    """Return the Markdown page of a method."""
    module = methods.contract(one.name)
    source, body, deviations = sections_of(module)
    facts, table, read = one.facts, table_of(one.name), described(one.name)
    kinds = kinds_of_input().get(one.name, ["yes", "yes", "–"])
    own = [setting for setting in read if setting.key.startswith(f"{table}.")]
    shared = [s for s in read if s.key.partition(".")[0] in methods.options(one.name).uses]
    command = " ".join(f"-s {setting}" for setting in (f"method={one.name}", *one.command))
    bullets = [
        PUBLIC[facts.public],
        ROUNDS[facts.rounds],
        LEAVES[facts.part],
        " and ".join(MODELS[model] for model in facts.answers["models"]),
        NETWORKS[facts.networks],
        f"images; signals: {kinds[0]}; tables: {kinds[1]}"
        + (f" ({kinds[2]})" if kinds[2] != "–" else ""),
    ]
    lines = [
        f"# {one.title}",
        f'This page describes {one.title}, `method = "{one.name}"`: {one.idea}.',
    ]
    lines += ["", *(f"- {text}" for text in bullets), "", "```", f"fedmosaic run {command}", "```"]
    lines += ["", diagram(facts), "", "## Algorithm", "", prose(body)]
    lines += ["", "## What leaves a client", ""]
    lines += [f"In a round: {_inline(facts.leaves)}.", ""]
    lines += [f"The server can infer: {_inline(facts.infers)}.", ""]
    lines += [
        f"Scored: {_inline(scored(facts))}. [All methods](../leaves.md) are in one table.",
        "",
    ]
    lines += ["### Messages", "", messages(one.name), "", "### Cost of a round", ""]
    lines += [cost(one.name)]
    lines += [
        "",
        "## Settings",
        "",
        settings_table(own) if own else "The method has no own settings.",
    ]
    if shared:
        lines += ["", '??? note "Shared settings that the method reads"', ""]
        lines += [f"    {line}" for line in settings_table(shared).splitlines()]
    if row := standing(one.name, recorded()):
        lines += ["", "## Leaderboard", "", row]
    if deviations:
        lines += ["", "## Deviations from paper and released code", "", prose(deviations)]
    lines += ["", "## Paper and code", "", source_line(source), "", code(one.name, module)]
    return "\n".join(lines) + "\n"


def sections_of(module: ModuleType) -> tuple[str, str, str]:
    """Return a contract's source, its body and its deviations."""
    text = inspect.cleandoc(module.__doc__ or "")
    _, _, rest = text.partition("\n\n")
    source, _, rest = rest.partition("\n\n")
    body, mark, deviations = rest.partition("\n\nDeviations")
    deviations = re.sub(r"^[^:\n]*:\s*", "", f"Deviations{deviations}") if mark else ""
    after = re.search(r"\n\n(?![-\s])", deviations)
    if after:  # paragraphs behind the deviations
        body, deviations = body + deviations[after.start() :], deviations[: after.start()]
    return source, body, deviations


def prose(text: str) -> str:
    """Return paragraphs of a docstring as Markdown; indented ones are equations."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if lines and all(line.startswith("    ") for line in lines) and not _explains(lines[0]):
            indent = min(len(line) - len(line.lstrip()) for line in lines)
            out.append(equation([line[indent:] for line in lines]))
        else:
            items = re.sub(r"\n(?=\s*(?:- |\([a-z]\)))", "\n\n", inspect.cleandoc(paragraph))
            items = re.sub(r"(?<=\n)(- .*\n(?:  .*\n)*)\n(?=- )", r"\1", items)
            out.append(_inline(items))
    return "\n\n".join(out)


def _explains(line: str) -> bool:
    return re.match(r"\s+(where|on|with|of)\b", line) is not None


def equation(lines: Sequence[str]) -> str:
    """Return lines of equations as HTML."""
    shown = [
        Markup('<div style="margin-left:{}em">{}</div>').format(
            (len(line) - len(line.lstrip())) / 2, equations.line(line)
        )
        for line in lines
    ]
    return f'<div class="equation" tabindex="0">{Markup("").join(shown)}</div>'


SYMBOL = re.compile(r"(?<![\w`.])([^\W\d_][\u0302-\u0304]?[²']?)_(\{[^}]+\}|\w+)|([*<\[])")


def _inline(text: str) -> str:
    """Return prose with codes, subscripts and escaped marks as Markdown."""

    def symbol(match: re.Match[str]) -> str:
        if match[3]:
            return f"\\{match[3]}" if match[3] != "<" else "&lt;"
        return f"{match[1]}<sub>{match[2].strip('{}')}</sub>"

    pieces = re.split(r"(``[^`]+``|`[^`]+`|\*\*[^*]+\*\*)", text)
    return "".join(
        piece.replace("``", "`") if i % 2 else SYMBOL.sub(symbol, piece)
        for i, piece in enumerate(pieces)
    )


def diagram(facts: Facts) -> str:
    """Return what goes down and up in a round, and what a client keeps, as a figure."""
    down, up = _symbols(facts.down), _symbols(facts.up)
    keeps = _symbols("; ".join(filter(None, ("its data", facts.kept))).replace("`", ""))
    return (
        '<figure class="round">\n'
        '<div class="box">server</div>\n'
        f'<div class="down"><span>down</span> {down}</div>\n'
        f'<div class="up"><span>up</span> {up}</div>\n'
        f'<div class="box">client k keeps {keeps}</div>\n'
        "</figure>"
    )


def _symbols(text: str) -> str:
    """Return a text as HTML with subscripts."""
    return re.sub(r"(?<!\w)([^\W\d_][\u0302-\u0304]?)_(\w+)", r"\1<sub>\2</sub>", str(escape(text)))


def messages(name: str) -> str:
    """Return the declared fields of a method's request and replies as a table."""
    server, client = server_app.methods.half(name), client_app.methods.half(name)
    kinds = [("down", client.request_type), ("up", server.reply_type)]
    if server.second_reply_type:
        kinds.append(("up, second exchange", server.second_reply_type))
    lines = [
        f"| {way} | `{field}` | {escape(shape)} | {comment} |"
        for way, kind in kinds
        for field, shape, comment in fields(kind)
    ]
    if not lines:
        return "Messages have numbers for the journal only."
    head = ("| direction | field | type | content |", "|---|---|---|---|")
    note = "A number of a tensor takes 4 bytes, or fewer with `wire.dtype`."
    return "\n".join([*head, *lines, "", note])


def fields(kind: type[Records]) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and comment of the fields that a message declares beyond the envelope."""
    seen: set[str] = set()
    for owner in kind.__mro__:
        if owner.__module__.startswith("common.") and owner is not Records:
            lines = inspect.getsource(owner)
            for field in FIELD.finditer(lines):
                name, shape, comment = field[1], field[2].strip(), field[3] or ""
                if name not in seen and name not in ENVELOPE and name in kind.model_fields:
                    seen.add(name)
                    about = comment or "weights and buffers by name" * (shape == "StateDict")
                    yield name, shape.replace("|", "or"), _inline(about).replace("|", "∣")


@functools.cache
def recorded() -> Sequence[Section]:
    """Return the sections of all boards that have a record."""
    boards = (Board(record(one), one) for one in map(protocols.read, protocols.names()))
    return [section for board in boards if board.folder.is_dir() for section in sections(board)]


def standing(name: str, found: Sequence[Section]) -> str:
    """Return the recorded rows of a method in the leaderboard as a table; empty without any."""
    rows = [
        (_where(section, one), one)
        for section in found
        for one in section.standings
        if one.place.row.set["method"] == name and not one.place.added and one.grid
    ]
    if not rows:
        return ""
    shown = columns(found[0].protocol)  # the boards have budgets of the same costs
    header = ("row", *(column.name for column in shown))
    lines: list[list[str | Cell]] = [
        [where, *(column.text(one) for column in shown)] for where, one in rows
    ]
    about = "The [leaderboard](../leaderboard.md) explains the protocol and the columns."
    return f"{markdown(Table(header, lines))}\n{about}"


def _where(section: Section, one: Standing) -> str:
    """Return a row's name with its part of the leaderboard."""
    where = title(section, one.place.one_shot)
    return clean(f"{one.place.row.name}, {section.protocol.name}, {where}")


def cost(name: str) -> str:
    """Return the recorded bytes and operations of a client in one round, with their setting."""
    one = measure.read().get(name)
    if one is None:
        return f"It is not measured yet; `{measure.COMMAND} {name}` measures it."
    return (
        f"{measure.sentence(one)} These are means over {measure.SETTING}, in round {one['round']}, "
        f"with the fleet `{one['fleet']}` and the method's settings of the "
        f"[leaderboard](../leaderboard.md). The command `{measure.COMMAND} {name}` repeats the "
        "measurement."
    )


FIELD = re.compile(r"^    (\w+): ([^=\n#]+?)(?: = .*?)?(?:  #: (.*))?$", re.MULTILINE)
ENVELOPE = ("experiment", "t", "k", "kept", "metrics")


def settings_table(known: Sequence[Setting]) -> str:
    """Return settings as a Markdown table: key, default, allowed values, meaning."""
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for key, default, allowed, text in known:
        value = json.dumps(default, ensure_ascii=False)
        cells = (f"`{key}`", f"`{value}`", allowed, text)
        lines.append("| " + " | ".join(cell.replace("|", "∣") for cell in cells) + " |")
    return "\n".join(lines)


def source_line(source: str) -> str:
    """Return the source of a method, with a link to the preprint if the contract names one."""
    text = _inline(" ".join(source.split()))
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def code(name: str, module: ModuleType) -> str:
    """Return the names of the files of a method."""
    halves: Mapping[str, type] = {
        "server half": server_app.methods.half(name),
        "client half": client_app.methods.half(name),
    }
    files = {"contract": module.__name__} | {role: half.__module__ for role, half in halves.items()}
    return "\n".join(f"- {role}: `{place.replace('.', '/')}.py`" for role, place in files.items())
