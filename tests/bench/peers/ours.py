"""This project's own run, whose journal tells when a round has ended."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """Run the command line, and hand on each line of the journal as it comes."""
    folder, workers = Path(sys.argv[1]), sys.argv[2]
    out = folder / f"ours-{time.time_ns()}"
    command = [sys.executable, "-m", "deploy.cli", "run", str(folder / "ours.toml")]
    command += ["--workers", workers, "--out", str(out)]
    watch = threading.Thread(target=follow, args=(out / "journal.jsonl",), daemon=True)
    watch.start()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    watch.join(5.0)


def follow(journal: Path) -> None:
    """A line for each round, within 5 ms of its line in the journal."""
    rounds = json.loads((journal.parents[1] / "work.json").read_text())["rounds"]
    seen = 0
    while seen <= rounds:
        lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
        for line in [each for each in lines if each.endswith("\n")][seen:]:
            entry, seen = json.loads(line), seen + 1
            what = {"round": entry["round"], "accuracy": entry["accuracy"]}
            print(json.dumps({"at": time.time(), **(what if what["round"] else {"ready": True})}))
        sys.stdout.flush()
        time.sleep(0.005)


main()
