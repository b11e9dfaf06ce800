"""Pages of the records: a table's protocol, numbers and comparisons, and studies of single runs."""

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.settings.config import Value
from common.settings.version import ROOT
from deploy.report.groups import half_width, mean_with_interval
from deploy.report.table import NONE, Cell, Table, markdown
from deploy.study import paper_table, records
from deploy.study.paper_table import TableFile
from tests.papers import BUNDLED, RESULTS, place, record
from tests.papers.claims_page import named
from tests.papers.judging import SEEDS

MOST = 4  #: most settings of one kind that a protocol lists
DIFFERENCES = re.compile(r"^.* less .*, seed by seed: .*$\n?", re.MULTILINE)
LINK = re.compile(r"\]\((?![\w+]*:|\.\.)")
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
BN = {
    "running": "running statistics of batch normalisation",
    "batch": "statistics of the test batch in batch normalisation",
    "recalibrated": "statistics that the clients measured in batch normalisation",
}

Claims = Sequence[Mapping[str, Any]]


def names() -> list[str]:
    """Return the names of the records: folders of results that have a text of the same name."""
    folders = (RESULTS, BUNDLED / "results")
    texts = (path for folder in folders for path in folder.glob("*/*.md"))
    return sorted(t.stem for t in texts if t.stem == t.parent.name and t.stem != "claims")


def link(path: Path) -> str:
    """Return a file of the repository as the page of a record names it."""
    return f"../../{path.relative_to(ROOT).as_posix()}"


def title(name: str) -> str:
    """Return the title of a record's text."""
    text = (record(name) / f"{name}.md").read_text(encoding="utf-8")
    return text.split("\n")[0].strip("#* ")


def pages(papers: Mapping[str, tuple[str, str]], claims: Claims) -> dict[str, str]:
    """Return the page of each record as text by path.

    ``papers``: name and page of a record's paper, for records that belong to one. ``claims``: the
    judged claims.
    """
    found = {}
    for name in names():
        paper, its_page = papers.get(name, ("methods of other papers", "../results"))
        of = f" about [{paper}](../{its_page}.md)"
        is_table = (record(name) / records.NAME).exists() and place(name).exists()
        page = table_page(name, of, claims) if is_table else study_page(name)
        found[f"results/records/{name}.md"] = page
    return found


def study_page(name: str) -> str:
    """Return the text of a record that is no table, followed by its tables."""
    folder = record(name)
    text = (folder / f"{name}.md").read_text(encoding="utf-8")
    lines = [LINK.sub(f"]({link(folder)}/", text).rstrip()]
    for path in sorted(folder.rglob("*.md")):
        if path.stem != name:
            heading = path.relative_to(folder).with_suffix("").as_posix()
            lines += ["", f"## Numbers: {heading}", "", path.read_text(encoding="utf-8").rstrip()]
    return "\n".join(lines) + "\n"


def table_page(name: str, of: str, claims: Claims) -> str:
    """Return the page of the recorded table ``name``; ``of`` names its paper."""
    file, folder = paper_table.read(place(name)), record(name)
    numbers = (folder / f"{name}.md").read_text(encoding="utf-8")
    numbers = DIFFERENCES.sub("", numbers.partition("\n\n")[2]).rstrip()  # without the title
    heading = file.title.split(": ")[0].removesuffix(", CPU scale")
    lines = [
        f"# {heading}",
        "",
        f"This page has the record `{name}`, a table{of}: what it shows, numbers and protocol.",
        "",
    ]
    if heading != file.title:
        lines += [f"{file.title}.", ""]
    if file.remarks:
        lines += ["## What it shows", "", file.remarks.strip(), ""]
    lines += ["## Numbers", "", numbers, ""]
    for picture in sorted(folder.glob("*.png")):
        lines += [f"![{picture.stem}]({link(picture)})", ""]
    if rows := list(differences(name, file)):
        lines += [
            "## Differences, seed by seed",
            "",
            "Means over the seeds that both rows have, ± half of the 95 % interval. Bold: at least "
            f"{SEEDS} seeds, and the interval leaves out 0. No number is corrected for the number "
            "of comparisons.",
            "",
            markdown(Table(("", *(column.name for column in file.column)), rows)),
        ]
    if judged := [one for one in claims if any(t["table"] == name for t in one["tests"])]:
        lines += ["## Claims", "", "Sentences of papers that this table helps to judge:", ""]
        lines += [
            f"- {one['says']} *{one['verdict'].capitalize()}:* "
            f"[{one['name']}](../{named(one['paper'])}-comparisons.md#{one['name']})"
            for one in judged
        ]
        lines += [""]
    lines += ["## Protocol", "", "| setting | value |", "|:--|:--|"]
    lines += [f"| {what} | {value} |" for what, value in protocol(file)]
    lines += [
        "",
        "The command goes on from a copy of the record, or starts anew in an empty folder:",
        "",
        f"```\npython -m tests.papers table {name} --out FOLDER\n```",
        "",
        f"All settings are in [{name}.toml]({link(place(name))}), the numbers of each seed in "
        f"[{records.NAME}]({link(folder / records.NAME)}).",
    ]
    return "\n".join(lines) + "\n"


def pairs(file: TableFile) -> list[tuple[str, str]]:
    """Return pairs of rows: those of the rows' ``against``, then of the table's ``compare``."""
    found = [(row.name, row.against) for row in file.row if row.against]
    for name, row in itertools.product(file.compare, file.row):
        if row.name != name and not {(name, row.name), (row.name, name)} & {*found}:
            found.append((name, row.name))
    return found


def differences(name: str, file: TableFile) -> Iterator[list[str | Cell]]:
    """Yield a table's row for each pair of rows that share a column."""
    columns = {column.name: column for column in file.column}
    rows = {row.name: row for row in file.row}
    values: dict[tuple[str, str], dict[int, float]] = {}
    for (row, column), cell in paper_table.collect(file, record(name)).cells.items():
        seeds = file.seeds_of(rows[row], columns[column])
        if len(cell.values) == len(seeds) and all(map(math.isfinite, cell.values)):
            values[row, column] = dict(zip(seeds, cell.values, strict=True))
    for first, second in pairs(file):
        cells = [
            _difference(values.get((first, c), {}), values.get((second, c), {}), file.format)
            for c in columns
        ]
        if any(cell.text != NONE for cell in cells):
            yield [f"{first} less {second}", *cells]


def _difference(first: Mapping[int, float], second: Mapping[int, float], spec: str) -> Cell:
    """Return the mean difference over common seeds, bold if it decides; a dash below two seeds."""
    numbers = [first[seed] - second[seed] for seed in first if seed in second]
    half = half_width(numbers)
    if half is None:
        return Cell(NONE)
    mean = statistics.fmean(numbers)
    visible = float(format(mean, spec)) != 0.0  # a few bytes of another message's framing are not
    decides = visible and len(numbers) >= SEEDS and abs(mean) > half
    return Cell(mean_with_interval(numbers, spec), best=decides)


def protocol(file: TableFile) -> Iterator[tuple[str, str]]:
    """Yield the settings of a table's runs in words, with the values of all rows and columns."""
    firsts = {(cell.row, cell.column): cell.flat for cell in paper_table.cells(file)}
    runs = list(firsts.values())

    def some(words: Callable[[Mapping[str, Value]], str]) -> str:
        distinct = [text for text in dict.fromkeys(map(words, runs)) if text]
        more = f"; {len(distinct) - MOST} more" if len(distinct) > MOST else ""
        return "; ".join(distinct[:MOST]) + more

    methods = dict.fromkeys(str(run["method"]) for run in runs)
    yield "methods", ", ".join(f"[{name}](../../methods/{name}.md)" for name in methods)
    yield "data", some(_data)
    yield "partition", some(_partition)
    if public := some(_public):
        yield "public set", public
    yield "clients", some(lambda run: f"{run['clients']}, {_active(run)} in a round")
    yield "networks", some(lambda run: ", ".join(f"`{n}`" for n in str(run["fleet"]).split(",")))
    yield "server's network", some(lambda run: _network(run))
    yield "rounds", some(lambda run: str(run["rounds"]))
    yield "local training, with its rate", some(_training)
    yield "scored on", some(lambda run: BN[str(run["score.bn"])])
    groups: dict[str, list[str]] = {}
    for row in file.row:
        groups.setdefault(_range(row.seeds or file.seeds), []).append(row.name)
    usual = max(groups, key=lambda seeds: len(groups[seeds]))
    others = [f"{seeds}: {', '.join(rows)}" for seeds, rows in groups.items() if seeds != usual]
    yield "seeds", "; ".join([usual, *others]).replace("|", "∣")


def _data(run: Mapping[str, Value]) -> str:
    train, test = (
        f"{run[key]:,}" if run[key] else "all" for key in ("data.samples", "data.test-samples")
    )
    size = f", {run['data.image-size']}×{run['data.image-size']} pixels"
    images = f"{run['data.name']}, {train} training and {test} test samples"
    return images + (size if run["data.image-size"] else "")


def _partition(run: Mapping[str, Value]) -> str:
    skew = f", α = {run['data.alpha']:g}" if "dirichlet" in str(run["data.partition"]) else ""
    return f"`{run['data.partition']}`{skew}"


def _public(run: Mapping[str, Value]) -> str:
    """Return the public set, or an empty text without one."""
    if run["data.public-dir"] or run["data.public-name"]:
        return f"{run['data.public-samples']:,} samples of another data set"
    share = 100 * float(run["data.public"])
    return f"{share:g} % of the training samples" if share else ""


def _active(run: Mapping[str, Value]) -> str:
    return str(run["per-round"]) if 0 < int(run["per-round"]) < int(run["clients"]) else "all"


def _network(run: Mapping[str, Value]) -> str:
    name = str(run["global-model"])
    return f"the {name} of the fleet" if name in ("smallest", "largest") else f"`{name}`"


def _training(run: Mapping[str, Value]) -> str:
    steps, epochs = run["train.steps"], run["train.epochs"]
    length = f"{steps} steps" if steps else f"{epochs} epoch{'s' * (epochs != 1)}"
    optimizer = str(run["train.optimizer"])
    optimizer = OPTIMIZERS.get(optimizer, optimizer)
    return f"{length}, batches of {run['train.batch-size']}, {optimizer} at {run['train.lr']:g}"


def _range(seeds: Sequence[int]) -> str:
    """Return ``1 to 5`` for consecutive seeds, else the seeds."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))
