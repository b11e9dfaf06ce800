"""``python -m tests.bench.scale``: memory and seconds against the number of SuperNodes.

All processes run on this machine with a warm start: N SuperNodes idle, 20 of them at most in a
round. Then a model of 50 million numbers (200 MB) goes to two clients and back. Records are added
to those of ``--out``, so that the parts can be measured one by one.
"""

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

from common.parse import defaults
from deploy.run import preflight
from deploy.run.grpc import Federation, start_federation
from deploy.settings import app_folder, numbers
from tests.bench import page, record
from tests.bench.memory import TOTAL, peak, processor, usage
from tests.bench.runs import FASHION

MOST, ROUNDS, IDLE = 20, 5, 15.0
CROWD = {**FASHION, "data.test-samples": 2000, "train.batch-size": 64, "rounds": ROUNDS}
IMAGES = 750  #: of each client, of which 600 train
HEAVY: dict[str, Any] = CROWD | {"fleet": "resnet18@2.12", "clients": 2, "rounds": 2}
HEAVY |= {"data.name": "digits", "data.samples": 100, "data.test-samples": 20}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--nodes", default="2,5,10,20,50", help="SuperNodes; '' for none")
    parser.add_argument("--payload", action="store_true", help="also the 200 MB model")
    options = parser.parse_args()
    for n in [text for text in options.nodes.split(",") if text]:
        found = crowd(int(n))
        page.show({"crowd": {n: found}}, "crowd")
        record.add(options.out, "crowd", n, value=found)
    if options.payload:
        found = payload()
        page.show({"payload": found}, "payload")
        record.add(options.out, "payload", value=found)


def crowd(n: int) -> dict[str, Any]:
    """N SuperNodes: what they cost idle, and rounds in which at most 20 of them take part."""
    chosen = min(n, MOST)
    changes = {**CROWD, "clients": n, "per-round": chosen, "data.samples": IMAGES * n}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        flat, out = _config(changes, Path(name) / "run")
        begin = time.monotonic()
        with _federation(n, out) as federation:
            started = time.monotonic() - begin
            sessions = _sessions(federation)
            before, at = processor(sessions), time.monotonic()
            time.sleep(IDLE)
            after, passed = processor(sessions), time.monotonic() - at
            idle = usage(sessions)
            used = {part: after[part] - before.get(part, 0) for part in after}

            def look() -> Counter[tuple[str, str]]:
                return usage(sessions) if _rounds(out) >= ROUNDS - 1 else Counter()

            with peak(look, 1.0) as busy:
                status = federation.control.follow(federation.submit(flat))
            assert status.completed, status.details
        seconds = [json.loads(line)["seconds"] for line in _journal(out)]
    return {
        "in a round": chosen,
        "start": round(started, 1),
        "round": round(median(of["total"] for of in seconds[2:ROUNDS]), 2),
        "census": round(seconds[0]["census"], 2),
        "idle": _memory(idle),
        "idle cpu": {part: round(s / passed, 4) for part, s in used.items()},
        "busy": _memory(busy),
        "load": round(os.getloadavg()[0], 2),
    }


def payload() -> dict[str, Any]:
    """Two rounds in which 200 MB go to each of two clients and come back."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        flat, out = _config(HEAVY, Path(name) / "run")
        with _federation(2, out) as federation:
            sessions = _sessions(federation)
            with peak(lambda: usage(sessions), 0.3) as memory:
                status = federation.control.follow(federation.submit(flat))
            assert status.completed, status.details
        entry = json.loads(_journal(out)[-2])
    moved = entry["bytes"]["down"] + entry["bytes"]["up"]
    return {
        "bytes": entry["bytes"],
        "seconds": entry["seconds"],
        "MB/s": round(moved / page.MB / entry["seconds"]["clients"], 1),
        "peak": _memory(memory),
        "load": round(os.getloadavg()[0], 2),
    }


def _config(changes: Mapping[str, Any], out: Path) -> tuple[dict[str, Any], Path]:
    return preflight.fresh(numbers({**defaults(), **changes}), "grpc", out)


def _federation(n: int, out: Path) -> AbstractContextManager[Federation]:
    env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    work = out / "flower"
    return start_federation(app=app_folder(), clients=n, work=work, env=env, warm_start=True)


def _sessions(federation: Federation) -> dict[int, str]:
    """Session id to name of every process that the federation started."""
    names = ["superlink", "warm"]
    names += [f"supernode-{k}" for k in range(federation.control.online())]
    return {federation.processes.started[name].pid: name for name in names}


def _journal(out: Path) -> list[str]:
    path = out / "journal.jsonl"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _rounds(out: Path) -> int:
    """Rounds that are done."""
    return len(_journal(out)) - 1


def _memory(found: Counter[tuple[str, str]]) -> dict[str, Any]:
    """Return the total and the sizes of each part."""
    parts: dict[str, Any] = {"total": found.pop(TOTAL)}
    for (part, kind), size in sorted(found.items()):
        parts.setdefault(part, {})[kind] = size
    return parts


if __name__ == "__main__":
    main()
