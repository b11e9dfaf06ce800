"""Run the fault tests, keep what happened in each, and write the table of it into the docs.

``python -m tests.bench.faults`` (``make faults``) runs them, two at a time, writes ``faults.json``
beside this file and the table into ``docs/faults.md``. ``-k WORDS`` runs those that pytest selects
by them; what is not run, or fails, keeps its former line. ``--table`` only writes the table again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("faults.json")
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
COLUMNS = {
    "fault": "fault",
    "seen": "what happens",
    "seconds": "after s",
    "after": "the run",
    "weights": "final weights",
}
ORDER = (
    *("clientapp-early", "clientapp-sigkill", "clientapp-asleep", "slow", "disk-full"),
    *("supernode-sigterm", "supernode-restart", "supernode-sigkill", "supernode-midway"),
    *("network-10s", "network-90s", "serverapp-sigkill", "superlink-sigkill"),
    *("superlink-restart", "launcher-sigkill-1", "launcher-sigkill-2", "launcher-sigkill-3"),
)


def run(workers: int, words: str = "") -> tuple[int, dict[str, Any]]:
    """Exit status of the fault tests that ``words`` select, and what they recorded."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/machines/test_faults.py",
            "-m",
            "faults or full",
        ]
        if words:
            command += ["-k", words]
        if workers > 1:
            command += ["-n", str(workers), "--dist", "worksteal"]
        done = subprocess.run(
            [*command, "--durations=0"], cwd=ROOT, env={**os.environ, "FAULTS": folder}
        )
        cases = {path.stem: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    here = {
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "cores": os.cpu_count(),
        "at a time": workers,
    }
    return done.returncode, {"recorded on": here, "faults": cases}


def table(recorded: dict[str, Any]) -> str:
    """The recorded faults as a table in Markdown, with the machine they were recorded on."""
    cases = recorded["faults"]
    lines = [
        "| " + " | ".join(COLUMNS.values()) + " |",
        "|" + "|".join("--:" if key == "seconds" else ":--" for key in COLUMNS) + "|",
    ]
    for name in (*(n for n in ORDER if n in cases), *sorted(cases.keys() - {*ORDER})):
        cells = [_cell(key, cases[name][key]) for key in COLUMNS]
        lines.append("| " + " | ".join(cells) + " |")
    here = recorded["recorded on"]
    lines += [
        "",
        f"Recorded on {here['cores']} cores, at most {here['at a time']} runs at a time, "
        f"with Flower {here['flwr']} and Python {here['python']}.",
    ]
    return "\n".join(lines)


def _cell(key: str, value: Any) -> str:
    return f"{value:.0f}" if key == "seconds" else str(value).replace("|", "\\|")


def write(recorded: dict[str, Any], page: Path) -> None:
    """Replace the table between the two marks of ``page``."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{page} lacks {BEGIN} or {END}"
    text = f"{before}{BEGIN}\n{table(recorded)}\n{END}{after}"
    page.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.faults", description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("-k", metavar="WORDS", default="", help="only the tests so named")
    given = parser.parse_args()
    status = 0
    if not given.table:
        status, recorded = run(given.workers, given.k)
        if RECORDED.exists():
            former = json.loads(RECORDED.read_text())["faults"]
            recorded["faults"] = {**former, **recorded["faults"]}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        if status != 0:
            print("a test failed: its line is the former one", file=sys.stderr)
    if RECORDED.exists():
        write(json.loads(RECORDED.read_text()), PAGE)
    return status


if __name__ == "__main__":
    sys.exit(main())
