"""``python -m tests.bench.many CASE … --out tests/bench/scale.json``: many clients on one machine.

Each case is a run of ``fedmosaic run`` in processes of its own. Written down are the journal's
seconds by phase, the processes' processor time, and the most memory that was theirs alone (private
pages, Linux only), of the server's process and of all together.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from common.data.embedded import toy
from deploy.flower import watchdog
from tests.bench import record
from tests.bench.memory import own, peak
from tests.bench.runs import FASHION
from tests.support.data_files import idx

LENET = {**FASHION, "data.test-samples": 2000, "per-round": 10, "rounds": 3}
SMALL = LENET | {"fleet": "mlp", "data.name": "mnist", "per-round": 100, "rounds": 20}
SMALL["score.clients"] = 1000
EACH = 4  #: images of a client of the small set, a quarter of them for its test
CASES: dict[str, dict[str, Any]] = {
    "100": LENET | {"clients": 100},
    "5000": LENET | {"clients": 5000},
    "100000": SMALL | {"clients": 100_000},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many", description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES, help="numbers of clients")
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    options = parser.parse_args()
    for name in options.cases:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found = measure(CASES[name], Path(folder))
        print(name, json.dumps(found, indent=1))
        record.add(options.out, "many", name, value=found)


def measure(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One run: what it took."""
    if settings["data.name"] == "mnist":
        synthetic(folder / "data", EACH * int(settings["clients"]))
        settings = settings | {"data.dir": str(folder / "data")}
    given = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    command = [sys.executable, "-m", "deploy.cli", "run", *given, "--out", str(folder / "run")]
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    with open(folder / "log", "wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=env)

        def look() -> Counter[str]:
            now = {pid: own(pid) for pid in watchdog.living({run.pid})}
            return Counter({"server": now.get(run.pid, 0), "all": sum(now.values())})

        with peak(look, 0.3) as memory:
            run.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        raise SystemExit((folder / "log").read_text())
    journal = (folder / "run" / "journal.jsonl").read_bytes()
    seconds = [json.loads(line)["seconds"] for line in journal.splitlines()]
    clients = int(settings["clients"])
    scored = min(int(settings.get("score.clients", clients)), clients)
    return {
        **{"clients": clients, "in a round": settings["per-round"], "rounds": settings["rounds"]},
        **{"scored": scored, "seconds": round(time.monotonic() - begin, 1)},
        "processor": round(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, 1),
        "census": round(seconds[0]["census"], 2),
        "round": round(float(np.median([of["total"] for of in seconds[1:-1]])), 2),
        "client scores": round(seconds[-1]["client scores"], 2),
        **{"server": memory["server"], "all": memory["all"], "journal": len(journal)},
        "summary": (folder / "run" / "summary.json").stat().st_size,
        "report": (folder / "run" / "report.html").stat().st_size,
        "load": round(os.getloadavg()[0], 2),
    }


def synthetic(folder: Path, size: int) -> None:
    """Patterns of 8×8 with noise, of ten classes, as the files of MNIST."""
    made = toy(classes=10, train=size, test=2000)
    folder.mkdir()
    for part, x, y in (("train", made.x, made.y), ("t10k", made.x_test, made.y_test)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(x[:, 0].numpy()))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(y.numpy().astype(np.uint8)))


if __name__ == "__main__":
    main()
