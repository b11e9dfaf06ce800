"""Records of benchmarks: their files of JSON, and the tables of pages that are filled from them."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.report.table import Table, markdown

Recorded = dict[str, Any]


def read(path: Path | None) -> Recorded:
    """Return the records of a file; none without a file."""
    found: Recorded = {}
    if path is not None and path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path | None, recorded: Recorded) -> None:
    """Write the records, with a line for each object without further objects."""
    if path is not None:
        path.write_text(_lines(recorded) + "\n", encoding="utf-8")


def add(path: Path | None, *names: str, value: object) -> None:
    """Set the record with these names, from the outermost one on; keep the file's others."""
    recorded = read(path)
    *outer, last = names
    place = recorded
    for name in outer:
        place = place.setdefault(name, {})
    place[last] = value
    write(path, recorded)


def _lines(value: object, depth: int = 0) -> str:
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return json.dumps(value, ensure_ascii=False)
    pad = " " * depth
    items = [f'{pad} "{name}": {_lines(item, depth + 1)}' for name, item in value.items()]
    return "\n".join(["{", ",\n".join(items), f"{pad}}}"])


def filled(text: str, tables: Mapping[str, Callable[[], Table]]) -> str:
    """Return ``text`` with each of its tables made anew.

    A table stands between ``<!-- NAME -->`` and ``<!-- end -->``. Raises ``ValueError`` for a name
    that is not in ``tables``.
    """

    def table(found: re.Match[str]) -> str:
        if found[1] not in tables:
            raise ValueError(f"no table is called {found[1]!r}; there are {', '.join(tables)}")
        return f"<!-- {found[1]} -->\n{markdown(tables[found[1]]())}<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)
