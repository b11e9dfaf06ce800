"""Tell every method well-formed lies, keep what became of each, and write the tables into the docs.

``python -m tests.bench.hostile`` (``make hostile``) runs the tests, writes ``hostile.json`` beside
this file and the tables into ``docs/attacks.md``. ``-k WORDS`` runs those that pytest selects by
them; what is not run, or fails, keeps its former cell. ``--table`` only writes the tables again.
"""

import sys
from pathlib import Path
from typing import Any

from deploy.report.table import Table
from tests.bench import poison
from tests.bench.record import ROOT, Recorded, collected, main

RECORDED = Path(__file__).with_name("hostile.json")
PAGE = ROOT / "docs" / "attacks.md"
TOLD = (
    *("nobody lies", "zeros", "largest", "one number", "constant", "times −10"),
    *("another client's", "last round's", "labels of one class", "10¹⁸ samples", "another's k"),
)
ASIDE = "real"  #: rows of the second table: real federations and what surrounds them


def run(workers: int, words: str, recorded: Recorded) -> int:
    """Run the tests, and add what they recorded, by method and lie."""
    status, found = collected("HOSTILE", ["tests", "-m", "hostile"], workers, words)
    for one in found.values():
        recorded.setdefault(one.pop("method"), {})[one.pop("lie")] = one
    return status


def lies(recorded: Recorded) -> Table:
    """What became of each lie, method by method; with the accuracy after an honest round."""
    told = [lie for lie in TOLD if any(lie in of for of in recorded.values())]
    methods = sorted(recorded.keys() - {ASIDE})
    rows = [[m, *(_cell(recorded[m].get(lie)) for lie in told)] for m in methods]
    return Table(["method", *told], rows)


def real(recorded: Recorded) -> Table:
    """What became of real federations."""
    found = recorded.get(ASIDE, {})
    rows = [[name, of["outcome"], of["line"]] for name, of in sorted(found.items())]
    return Table(["attempt", "the run", "what the operator sees"], rows)


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    accuracy, outcome = found.get("accuracy"), str(found["outcome"])
    return outcome if accuracy is None else f"{outcome} ({100 * accuracy:.0f})"


def defences(_: Recorded) -> Table:
    """Accuracy of poisoned runs under each defence."""
    return poison.defences(poison.load_recorded())


TABLES = {"lies": lies, "real": real, "defences": defences}

if __name__ == "__main__":
    sys.exit(main(__doc__, RECORDED, PAGE, TABLES, run))
