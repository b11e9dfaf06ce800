"""How far out honest clients' numbers are: what the default of ``sanity`` rests on.

``python -m tests.bench.honest`` runs every case, some minutes, and prints the table.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.journal import Magnitude, read_lines
from tests.support.battery import config
from tests.support.tiny import play, under

DIGITS: dict[str, Any] = {
    **{"clients": 6, "rounds": 3, "fleet": "cnn2@0.5", "train__epochs": 2},
    **under("data", name="digits", samples=600, test_samples=60, test_fraction=0),
    **under("data", partition="label_dirichlet", alpha=0.1, min_size=1),
}
QUANTITY = {"data__partition": "quantity_dirichlet", "min_replies": 0.1}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "labels skewed": ("fedavg", {}),
    "labels skewed, many epochs, fast": ("fedavg", {"train__epochs": 10, "train__lr": 0.1}),
    "quantities skewed": ("fedavg", QUANTITY),
    "quantities skewed, many epochs": ("fedavg", {**QUANTITY, "train__epochs": 20}),
    "quantities skewed, BatchNorm": ("fedavg", {**QUANTITY, "fleet": "resnet8@0.25"}),
    "quantities skewed, Adam": ("fedavg", {**QUANTITY, "train__optimizer": "adam"}),
    "quantities skewed, RMSprop": ("fedavg", {**QUANTITY, "train__optimizer": "rmsprop"}),
    "quantities skewed, equal steps": ("fedavg", {**QUANTITY, "train__steps": 5}),
    "quantities skewed, momentum 0.9": ("fedavg", {**QUANTITY, "train__momentum": 0.9}),
    **{
        f"quantities skewed, {method}": (method, QUANTITY)
        for method in ("fedprox", "scaffold", "fedorion", "fedkf", "fedgen", "moon")
    },
    "two architectures, fedin": ("fedin", {"fleet": "cnn2@0.5,cnn3@0.5", **QUANTITY}),
    "own models, hetfedfl": ("hetfedfl", {}),
    "public set, fedmd": ("fedmd", {"data__public": 0.3}),
}


def main() -> None:
    print(f"{'case':44}{'change':>9}{'largest':>10}")
    widest = furthest = 0.0
    for name, found in played():
        change = max((one.change or 0.0 for one in found), default=0.0)
        largest = max((one.largest for one in found), default=0.0)
        print(f"{name:44}{change:9.2f}{largest:10.3g}", flush=True)
        widest, furthest = max(widest, change), max(furthest, largest)
    print(f"{'the largest':44}{widest:9.2f}{furthest:10.3g}")


def played() -> Iterator[tuple[str, list[Magnitude]]]:
    """Every case, without the bound."""
    for name, (method, changes) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = config(method, Path(folder), **{**DIGITS, **changes, "sanity": 0})
            try:
                yield name, magnitudes(play(settings).folder)
            except (ValueError, RuntimeError) as error:
                print(f"{name}: {error}", file=sys.stderr)


def magnitudes(folder: Path) -> list[Magnitude]:
    entries = (line.entry for line in read_lines(folder / "journal.jsonl"))
    return [one for entry in entries if entry for one in entry.magnitudes.values()]


if __name__ == "__main__":
    main()
