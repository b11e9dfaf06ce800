"""Tests that record what happens in them: run them, keep the records, fill the tables of a page."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from deploy.report.table import Table
from tests.bench import record
from tests.bench.record import filled, read, write

Recorded = record.Recorded
ROOT = Path(__file__).resolve().parents[2]


def collected(
    variable: str, tests: Sequence[str], workers: int, words: str
) -> tuple[int, Recorded]:
    """Run ``tests`` with a folder in ``variable``: exit status, and what they left there."""
    with tempfile.TemporaryDirectory(prefix="records-") as folder:
        command = [sys.executable, "-m", "pytest", *tests]
        command += ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        command += ["-k", words] if words else []
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, variable: folder})
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
