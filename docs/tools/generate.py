"""``python -m docs.tools.generate``: write what is generated from settings and contracts.

The defaults go into ``pyproject.toml``, the lists of ``fedmosaic list`` into ``listing.json``, and
the tables of methods into pages of ``docs/``, between marks.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import client_app.methods
import server_app.methods
from common import methods
from common.data import DATASETS
from common.data.partition import PARTITIONS
from common.files import write_atomically
from common.keys import NAMED
from common.models import MODELS
from common.parse import defaults, tables
from common.settings.clock import Profile
from common.settings.facts import Facts
from common.settings.profiles import PRESETS
from common.settings.section import Section, kebab
from common.settings.version import ROOT
from deploy.leaderboard.protocol import read
from deploy.report import chooser, listing
from deploy.settings import with_app_config
from server_app.selection import RULES
from server_app.tracking.tracker import TRACKERS

MARKS = re.compile(r"(<!-- (\w+): begin -->\n).*?(\n<!-- \2: end -->)", re.DOTALL)
"""The marks around the table of a name in a page."""


def listing_text() -> str:
    """Return the text of ``listing.json`` for this code, a row per line."""

    content: dict[str, list[Any]] = {
        kind: [] for kind in (*listing.HEADERS, "answers", "settings", "reads")
    }
    for name in methods.names():
        module = methods.contract(name)
        paragraphs = [" ".join(text.split()) for text in (module.__doc__ or "").split("\n\n")]
        title, source = (text.strip().rstrip(".") for text in (*paragraphs, "")[:2])
        title = title.partition(":")[2].strip() or title
        path = module.__name__.replace(".", "/") + ".py"
        content["methods"].append((name, title, source, path))
        content["answers"].append((name, methods.facts(name).answers))
    for name, row in MODELS.items():
        size = (f"{row.params:,}", "×".join(map(str, row.input)), str(row.smallest))
        content["models"].append((name, *size, row.source))
    for family, about in (("torchvision", "its classifiers"), ("timm", "PyTorch Image Models")):
        content["models"].append((f"{family}:NAME", "", "any", "", f"{about} with a linear head"))
    for name, data in DATASETS.items():
        shape = "×".join(map(str, data.shape or ())) or "any"
        content["datasets"].append((name, shape, str(data.classes or "any"), data.description))
    for name, rule in PARTITIONS.items():
        keys = [f"data.{kebab(key)}" for key in rule.options if key != "num_classes"]
        content["partitions"].append((name, rule.description, rule.source, ", ".join(keys)))
    for name, (place, package) in TRACKERS.items():
        content["trackers"].append((name, f"{place}, with the package {package}"))
    for name, rule_of in RULES.items():
        content["selections"].append((name, (rule_of.__doc__ or "").partition(".")[0]))
    for name, (preset, source) in PRESETS.items():
        content["profiles"].append((name, *profile_cells(preset), source))
    known: dict[str, type[Section]] = {
        **tables(),
        **{name: kind for name, (_, kind) in NAMED.items()},
    }
    content["settings"] = [
        s for table, kind in known.items() for s in listing.settings_of(table, kind)
    ]
    raw = {setting.key: setting.default for setting in content["settings"]}
    for name in methods.names():
        read = list(listing.read_by(name))
        prefixes = dict.fromkeys(setting.key.rpartition(".")[0] for setting in read)
        resolved = {s.key: s.default for s in read if s.default != raw[s.key]}
        content["reads"].append((name, list(prefixes), resolved))
    lists = []
    for kind, lines in content.items():
        text = ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        lists.append(f"{json.dumps(kind)}: [\n{text}\n]")
    return "{\n" + ",\n".join(lists) + "\n}\n"


def profile_cells(profile: Profile) -> tuple[str, ...]:
    """Return the figures of a profile in the order of the columns of ``list profiles``."""
    units = ((profile.memory, "GB"), (profile.memory_bandwidth, "GB/s"))
    memory, bandwidth = (f"{value / 1e9:g} {unit}" if value else "" for value, unit in units)
    watts = f"{profile.power:g}" if profile.power else ""
    rate = f"{(profile.flops or 0.0) / 1e9:g}e9"
    return rate, f"{profile.efficiency:g}", memory, bandwidth, profile.network or "", watts


def ordered() -> list[str]:
    """Return the methods in the order of the leaderboard's rows, which is by theme."""
    rows = (str(row.set["method"]) for row in read().row)
    return list(dict.fromkeys([*rows, *methods.names()]))


def grouped(value: Callable[[Facts], tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of methods with equal values, as code, and the values."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in ordered():
        groups.setdefault(value(methods.facts(name)), []).append(f"`{name}`")
    for values, names in groups.items():
        yield ", ".join(names), values


def scored(facts: Facts) -> str:
    """Return the models that are scored, those of clients after "own:"."""
    own = f"own: {facts.own}" if facts.own else ""
    return "; ".join(filter(None, (facts.whole, own)))


def exchanged() -> list[tuple[str, ...]]:
    """Return the rows of what leaves a client, and its methods."""
    return [(values[0], names) for names, values in grouped(lambda facts: (facts.sends,))]


def described() -> list[tuple[str, ...]]:
    """Return a row of each method: what it is, its source and its halves."""
    rows: list[tuple[str, ...]] = []
    about = {name: (title, source) for name, title, source, _ in chooser.built()["methods"]}
    for name in ordered():
        halves = {
            "server": server_app.methods.half(name).__module__.rpartition(".")[2],
            "client": client_app.methods.half(name).__module__.rpartition(".")[2],
        }
        others = [
            f"{side}: `{module.replace('_', '-')}`"
            for side, module in halves.items()
            if module.replace("_", "-") != name
        ]
        rows.append((f"`{name}`", *about[name], ", ".join(others) or "own"))
    return rows


def shared() -> list[tuple[str, ...]]:
    """Return the rows of what travels, is kept and is scored."""

    def values(facts: Facts) -> tuple[str, ...]:
        return facts.down, facts.up, facts.kept or "–", scored(facts)

    return [(names, *row) for names, row in grouped(values)]


def leaving() -> list[tuple[str, ...]]:
    """Return the rows of what leaves a client and what the server can infer."""
    return [(names, *row) for names, row in grouped(lambda facts: (facts.leaves, facts.infers))]


def learning() -> list[tuple[str, ...]]:
    """Return the rows of what methods learn: objectives, methods, and the reason for one alone."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in ordered():
        contract = methods.options(name)
        alone = len(contract.objectives) == 1
        why = contract.classes_only if alone else ""
        groups.setdefault((", ".join(contract.objectives), why), []).append(f"`{name}`")
    return [(learnt, ", ".join(names), why) for (learnt, why), names in groups.items()]


def untextual() -> list[tuple[str, ...]]:
    """Return the rows of the methods that take no texts: methods, and the reason."""
    groups: dict[str, list[str]] = {}
    for name in ordered():
        contract = methods.options(name)
        if why := contract.no_texts or contract.images:
            groups.setdefault(why, []).append(f"`{name}`")
    return [(", ".join(names), why) for why, names in groups.items()]


TABLES: Mapping[str, tuple[str, tuple[str, ...], Callable[[], list[tuple[str, ...]]]]] = {
    "exchanged": ("methods", ("leaves a client", "methods"), exchanged),
    "described": ("methods", ("method", "what it is", "source", "halves"), described),
    "shared": (
        "methods-shared",
        ("method", "down", "up", "kept by the client", "scored"),
        shared,
    ),
    "learning": ("objectives", ("learns", "methods", "why no more"), learning),
    "untextual": ("text-models", ("methods", "why they take no texts"), untextual),
    "leaving": (
        "leaves",
        ("method", "leaves a client in a round", "what the server can infer"),
        leaving,
    ),
}
"""Page, header and rows of each table, by the name of its marks."""


def with_tables(text: str) -> str:
    """Return a page with the tables between its marks made anew."""

    def replaced(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            return match[0]
        _, header, rows = TABLES[match[2]]
        lines = [header, ("---",) * len(header), *rows()]
        cells = (" | ".join(cell.replace("|", "∣") for cell in line) for line in lines)
        return match[1] + "\n".join(f"| {line} |" for line in cells) + match[3]

    return MARKS.sub(replaced, text)


def pages() -> dict[Path, str]:
    """Return the pages that have generated tables, as they should be."""
    paths = [ROOT / "docs" / f"{page}.md" for page, _, _ in TABLES.values()]
    return {path: with_tables(path.read_text(encoding="utf-8")) for path in dict.fromkeys(paths)}


def main() -> None:
    """Write all generated texts."""
    pyproject = ROOT / "pyproject.toml"
    texts = {pyproject: with_app_config(pyproject.read_text(encoding="utf-8"), defaults())}
    for path, text in (texts | {chooser.FILE: listing_text()}).items():
        write_atomically(path, text.encode())
    chooser.built.cache_clear()
    for path, text in pages().items():
        write_atomically(path, text.encode())


if __name__ == "__main__":
    main()
