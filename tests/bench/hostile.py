"""Tell every method well-formed lies, keep what became of each, and write the tables into the docs.

``python -m tests.bench.hostile`` (``make hostile``) runs the tests, writes ``hostile.json`` beside
this file and two tables into ``docs/hostile.md``. ``-k WORDS`` runs those that pytest selects by
them; what is not run, or fails, keeps its former cell. ``--table`` only writes the tables again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from deploy.report.table import Table
from tests.bench.page import filled

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("hostile.json")
PAGE = ROOT / "docs" / "hostile.md"
TOLD = (
    *("nobody lies", "zeros", "largest", "one number", "constant", "times −10"),
    *("another client's", "last round's", "labels of one class", "10¹⁸ samples", "another's k"),
)
ASIDE = "real"  #: rows of the second table: real federations and what surrounds them


def run(workers: int, words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status of the tests that ``words`` select, and what they recorded, by method and lie."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        command = [sys.executable, "-m", "pytest", "tests", "-m", "hostile"]
        command += ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        command += ["-k", words] if words else []
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "HOSTILE": folder})
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(Path(folder).glob("*.json")):
            one = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(one.pop("method"), {})[one.pop("lie")] = one
    return done.returncode, found


def lies(recorded: dict[str, dict[str, Any]]) -> Table:
    """What became of each lie, method by method; with the accuracy after an honest round."""
    told = [lie for lie in TOLD if any(lie in of for of in recorded.values())]
    methods = sorted(recorded.keys() - {ASIDE})
    rows = [[m, *(_cell(recorded[m].get(lie)) for lie in told)] for m in methods]
    return Table(["method", *told], rows)


def real(recorded: dict[str, dict[str, Any]]) -> Table:
    """What became of real federations."""
    found = recorded.get(ASIDE, {})
    rows = [[name, of["outcome"], of["line"]] for name, of in sorted(found.items())]
    return Table(["attempt", "the run", "what the operator sees"], rows)


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    accuracy, outcome = found.get("accuracy"), str(found["outcome"])
    return outcome if accuracy is None else f"{outcome} ({100 * accuracy:.0f})"


def write(recorded: dict[str, dict[str, Any]]) -> None:
    """Fill the page's tables."""
    text = PAGE.read_text(encoding="utf-8")
    tables = {"lies": partial(lies, recorded), "real": partial(real, recorded)}
    PAGE.write_text(filled(text, tables), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hostile", description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the tables again")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("-k", metavar="WORDS", default="", help="only the tests so named")
    given = parser.parse_args()
    status = 0
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if not given.table:
        status, found = run(given.workers, given.k)
        for name, of in found.items():
            recorded[name] = {**recorded.get(name, {}), **of}
        text = json.dumps(recorded, indent=1, sort_keys=True, ensure_ascii=False)
        RECORDED.write_text(text + "\n", encoding="utf-8")
        if status != 0:
            print("a test failed: its cell is the former one", file=sys.stderr)
    write(recorded)
    return status


if __name__ == "__main__":
    sys.exit(main())
