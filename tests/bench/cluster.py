"""``python -m tests.bench.cluster --out tests/bench/scale.json``: a Ray cluster and the loopback.

The same FedAvg work in turns: on loopback with two workers, and on a Ray cluster of two "machines",
which are network namespaces of this one with one processor each as Ray counts. Both have the same
two cores, so what differs is what Ray costs. Needs root on Linux.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.runs import FASHION
from tests.support import namespaces
from tests.support.cluster import environment, start

WORK = {**FASHION, "rounds": 5, "data.test-fraction": 0.0, "data.test-samples": 1000}
CASES: dict[str, dict[str, Any]] = {
    "8 clients, 1,500 images each": {"clients": 8, "data.samples": 12_000},
    "600 clients, 80 images each, 10 in a round": {
        **{"clients": 600, "per-round": 10, "data.samples": 48_000}
    },
}
DRIVER = """
import json, sys
from deploy.api import run

settings, out, address = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
more = {"runtime": "ray", "ray_address": address} if address else {"workers": 2}
run(out=out, quiet=True, **settings, **more)
"""
Run = Callable[[list[str]], None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    options = parser.parse_args()
    if why := namespaces.allowed():
        raise SystemExit(str(why))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="r-") as name, machines(Path(name)) as (address, run):
        for case, settings in CASES.items():
            turns: list[tuple[dict[str, float], dict[str, float]]] = []
            for turn in range(options.turns):
                both = []
                for where in ("", address):
                    out = Path(name) / f"{len(found)}-{turn}-{'ray' if where else 'loopback'}"
                    run([json.dumps(WORK | settings), str(out), where])
                    both.append(seconds(out))
                turns.append((both[0], both[1]))
                print(case, *both, flush=True)
            found[case] = {
                phase: {
                    "loopback": round(median(here[phase] for here, _ in turns), 2),
                    "ray": round(median(there[phase] for _, there in turns), 2),
                    "times": round(median(t[phase] / h[phase] for h, t in turns), 2),
                }
                for phase in ("census", "round")
            }
    told = {"turns": options.turns, "load": round(os.getloadavg()[0], 2), "cases": found}
    print(json.dumps(told, indent=1))
    if options.out:
        kept = json.loads(options.out.read_text()) if options.out.exists() else {}
        text = json.dumps({**kept, "cluster": told}, indent=1) + "\n"
        options.out.write_text(text, encoding="utf-8")


def seconds(out: Path) -> dict[str, float]:
    """Of one run: the census, and the median of its rounds but the first and the last."""
    entries = [json.loads(line) for line in (out / "journal.jsonl").read_bytes().splitlines()]
    rounds = [entry["seconds"]["total"] for entry in entries[2:-1]]
    return {"census": entries[0]["seconds"]["census"], "round": median(rounds)}


@contextmanager
def machines(folder: Path) -> Iterator[tuple[str, Run]]:
    """The cluster's address, and what runs the driver on its first machine."""
    with namespaces.Network() as network:
        a, b = network.host("a"), network.host("b")
        address = start([a, b], folder)

        def run(arguments: list[str]) -> None:
            log = folder / "driver.log"
            command = [sys.executable, "-c", DRIVER, *arguments]
            if a.start(command, environment(), log).wait():
                raise SystemExit(log.read_text())

        yield address, run


if __name__ == "__main__":
    main()
