"""How unusual honest runs look: what the bounds of ``sanity`` and ``score.collapse`` rest on.

    python -m tests.bench.honest               # play every case, some minutes, and print the table
    python -m tests.bench.honest FOLDER...     # the same for all runs in these folders, and alarms

Papers' tables are played with ``python -m tests.papers table NAME --seed 1 --out FOLDER/NAME``.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.journal import Entry
from server_app.callbacks.collapse import FEWEST, collapse
from server_app.messaging.sanity import suspects
from server_app.storage.journal import read_lines
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


def main(folders: list[Path]) -> None:
    """Print the magnitudes of all runs; of runs in folders also the alarms."""
    print(f"{'case':44}{'change':>9}{'largest':>10}")
    runs = list[list[Entry]]()
    for name, entries in journals(folders) if folders else played():
        runs.append(entries)
        line(name, entries)
    line("the largest", [entry for entries in runs for entry in entries])
    if folders:
        count(runs)


def line(name: str, entries: list[Entry]) -> None:
    """Print the largest magnitudes of these rounds."""
    found = [one for entry in entries for one in entry.magnitudes.values()]
    change = max((one.change or 0.0 for one in found), default=0.0)
    largest = max((one.largest for one in found), default=0.0)
    print(f"{name:44}{change:9.2f}{largest:10.3g}", flush=True)


def played() -> Iterator[tuple[str, list[Entry]]]:
    """Play every case, without the bound."""
    for name, (method, changes) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = config(method, Path(folder), **{**DIGITS, **changes, "sanity": 0})
            try:
                yield name, journal(play(settings).folder)
            except (ValueError, RuntimeError) as error:
                print(f"{name}: {error}", file=sys.stderr)


def journal(folder: Path) -> list[Entry]:
    return [line.entry for line in read_lines(folder / "journal.jsonl") if line.entry]


def journals(folders: list[Path]) -> Iterator[tuple[str, list[Entry]]]:
    """Yield every run in the folders that has at least one round."""
    for path in sorted(path for folder in folders for path in folder.rglob("journal.jsonl")):
        if len(entries := journal(path.parent)) > 1:
            yield str(path.parent), entries


def alarms(entries: list[Entry]) -> int:
    """Return the number of rounds after which ``score.collapse`` warns."""
    scores = [entry.accuracy for entry in entries[1:] if entry.accuracy is not None]
    chance = 1 / len(entries[0].classes)
    return sum(collapse(score, scores[:i], chance) is not None for i, score in enumerate(scores))


def count(runs: list[list[Entry]]) -> None:
    """Print how many runs have an alarm, and in how many rounds a client stands out."""
    long = compared = alarmed = rounds = unusual = 0
    for entries in runs:
        later = max(sum(entry.accuracy is not None for entry in entries[1:]) - FEWEST, 0)
        long, compared = long + bool(later), compared + later
        alarmed += bool(alarms(entries))
        architectures = {member.k: member.model for member in entries[0].clients}
        changed = [e for e in entries if any(m.change is not None for m in e.magnitudes.values())]
        rounds += len(changed)
        unusual += sum(bool(suspects(entry, architectures)) for entry in changed)
    print(f"{alarmed} of {long} runs, in which {compared} scores are compared, have an alarm")
    print(f"in {unusual} of {rounds} rounds with comparable updates a client stands out")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
