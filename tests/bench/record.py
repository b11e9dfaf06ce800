"""Records of benchmarks and of tests: files of JSON, and the tables of pages filled from them."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deploy.report.table import Table, markdown

Recorded = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


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


def collected(name: str, tests: Sequence[str], workers: int, words: str) -> tuple[int, Recorded]:
    """Run ``tests`` with a folder in the variable ``name``: exit status, and their records."""
    with tempfile.TemporaryDirectory(prefix="records-") as folder:
        command = [sys.executable, "-m", "pytest", *tests]
        command += ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        command += ["-k", words] if words else []
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, name: folder})
        files = sorted(Path(folder).glob("*.json"))
        found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}
    return done.returncode, found


def main(
    doc: str | None,
    file: Path,
    page: Path,
    tables: Mapping[str, Callable[[Recorded], Table]],
    run: Callable[[int, str, Recorded], int],
) -> int:
    """The command line. ``run(workers, words, recorded)`` adds to the records."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--table", action="store_true", help="only write the tables again")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("-k", metavar="WORDS", default="", help="only the tests so named")
    given = parser.parse_args()
    status = 0
    recorded = read(file)
    if not given.table:
        status = run(given.workers, given.k, recorded)
        write(file, recorded)
        if status != 0:
            print("a test failed: what it recorded before stays", file=sys.stderr)
    made = {name: partial(table, recorded) for name, table in tables.items()}
    page.write_text(filled(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    return status
