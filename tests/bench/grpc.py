"""``python -m tests.bench.grpc``: what a round over gRPC costs, with a cold and a warm start.

The work: 4 SuperNodes, FedAvg, LeNet-5 on Fashion-MNIST, 12,000 images a round, one epoch. Runs of
the two starts take turns; round 1 is left out.
"""

import argparse
import os
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from deploy.run.launch import default_workers
from tests.bench import loop, page, record
from tests.bench.runs import FASHION, played

IMAGES, BATCH = 12_000, 64
WORK = {**FASHION, "clients": 4, "train.batch-size": BATCH, "train.lr": 0.05}
WORK |= {"data.samples": 15_000, "data.test-samples": 2000, "data.test-fraction": 0.2}
STARTS = {"plain": False, "warm": True}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.grpc", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a run (5)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each start (2)")
    options = parser.parse_args()
    if options.rounds < 2 or options.turns < 1:
        parser.error("--rounds must be at least 2, --turns at least 1")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in STARTS}
    for _ in range(options.turns):
        for name, warm in STARTS.items():
            runs[name].append(one(warm, options.rounds))
            print(f"{name}: {runs[name][-1]['rounds'][-1]['total']:.1f} s a round")
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cores": default_workers(),
        "bare loop": bare(),
        "starts": {name: merged(of) for name, of in runs.items()},
        "same weights": len({run["weights"] for of in runs.values() for run in of}) == 1,
    }
    show(found)
    record.write(options.out, record.read(options.out) | found)


def one(warm: bool, rounds: int) -> dict[str, Any]:
    """Return the seconds of rounds 2 … of one run, the seconds once a run, and its weights."""
    run = played({**WORK, "rounds": rounds}, "grpc", warm=warm)
    assert run.summary is not None
    seconds = [dict(entry.seconds) for entry in run.entries]
    last = seconds[-1].pop("client scores")
    seconds[-1]["total"] -= last
    return {
        "rounds": seconds[2:],
        "once": {"census": seconds[0]["census"], "client scores": last},
        "weights": run.summary.weights_sha256,
        "load": os.getloadavg()[0],
    }


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over the rounds of all runs."""
    return {
        "seconds": _medians([of for run in runs for of in run["rounds"]]),
        "once": _medians([run["once"] for run in runs]),
        "rounds": [round(of["total"], 3) for run in runs for of in run["rounds"]],
        "load": round(fmean(run["load"] for run in runs), 2),
    }


def bare() -> dict[str, float]:
    """Return the seconds of a bare PyTorch loop over the same images in one thread."""
    torch.set_num_threads(1)
    work = loop.Work("lenet5", (1, 28, 28), BATCH, IMAGES)
    speed, ours, _ = loop.ratio(work, 3)
    return {"bare": round(IMAGES / speed, 3), "fit": round(IMAGES / ours, 3)}


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: round(median(row[name] for row in rows if name in row), 3) for name in names}


def show(found: dict[str, Any]) -> None:
    page.show(found, "starts")
    took = found["bare loop"]
    print(f"bare PyTorch loop, one thread: {took['bare']:.2f} s; our loop {took['fit']:.2f} s")
    for name, of in found["starts"].items():
        print(f"{name}: {of['seconds']['total'] / took['bare']:.2f} times the bare loop")
    print(f"all runs end with the same weights: {'yes' if found['same weights'] else 'NO'}")


if __name__ == "__main__":
    main()
