"""How often honest runs look poisoned: what the bounds of ``score.collapse`` rest on.

    python -m tests.bench.false_alarms play FOLDER     # the default run of every method, resumable
    python -m tests.bench.false_alarms FOLDER...       # count in all runs in these folders

Papers' tables are played with ``python -m tests.papers table NAME --seed 1 --out FOLDER/NAME``.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from common.journal import Entry, read_lines
from common.methods import names
from server_app.messaging.sanity import suspects
from server_app.scoring.collapse import FEWEST, collapse

NEEDED = {
    "depthfl": ("fleet=cnn4-exits1,cnn4-exits2,cnn4-exits3",),
    "fedgkt": ("fleet=cnn2,cnn3", "global-model=cnn3"),
    **dict.fromkeys(("fedin", "inclusivefl"), ("fleet=cnn2,cnn3,cnn4",)),
    **dict.fromkeys(
        ("heterofl", "fedrolex"), ("fleet=resnet8,resnet8@0.5", "score.bn=recalibrated")
    ),
    **dict.fromkeys(("dl-mh", "dl-sh", "i-dl-mh", "ds-fl", "fdmeta"), ("data.public=0.4",)),
    **dict.fromkeys(("feddf", "fedkemf", "fedmd", "kt-pfl"), ("data.public=0.4",)),
}
"""Settings without which a method refuses the default run."""


def play(folder: Path) -> None:
    """Play the default run of every method that is not completed in ``folder``."""
    for method in names():
        out = folder / method
        if not (out / "summary.json").exists():
            changes = [
                f"--set={change}" for change in (f"method={method}", *NEEDED.get(method, ()))
            ]
            subprocess.run(["fedmosaic", "run", *changes, "--out", str(out)], check=False)


def journals(folders: list[Path]) -> Iterator[tuple[Path, list[Entry]]]:
    """Yield every run in the folders that has at least one round."""
    for path in sorted(path for folder in folders for path in folder.rglob("journal.jsonl")):
        entries = [line.entry for line in read_lines(path) if line.entry]
        if len(entries) > 1:
            yield path.parent, entries


def alarms(entries: list[Entry]) -> list[str]:
    """Return the rounds after which ``score.collapse`` warns, in words."""
    former, found = list[float](), list[str]()
    for entry in entries[1:]:
        if entry.accuracy is None:
            continue
        before = collapse(entry.accuracy, former, len(entries[0].classes))
        if before is not None:
            found.append(f"round {entry.round}: {entry.accuracy:.3f} from {before:.3f}")
        former.append(entry.accuracy)
    return found


def main(folders: list[Path]) -> None:
    runs = compared = alarmed = rounds = unusual = 0
    for folder, entries in journals(folders):
        later = max(sum(entry.accuracy is not None for entry in entries[1:]) - FEWEST, 0)
        runs, compared = runs + bool(later), compared + later
        if found := alarms(entries):
            alarmed += 1
            print(f"{folder}: {'; '.join(found)}")
        architectures = {member.k: member.model for member in entries[0].clients}
        changed = [e for e in entries if any(m.change is not None for m in e.magnitudes.values())]
        rounds += len(changed)
        unusual += sum(bool(suspects(entry, architectures)) for entry in changed)
    print(f"{alarmed} of {runs} runs, in which {compared} scores are compared, have an alarm")
    print(f"in {unusual} of {rounds} rounds with comparable updates a client stands out")


if __name__ == "__main__":
    if sys.argv[1:2] == ["play"]:
        play(Path(sys.argv[2]))
        sys.argv[1:2] = []
    main([Path(folder) for folder in sys.argv[1:]])
