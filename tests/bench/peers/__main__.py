"""``python -m tests.bench.peers`` (``make bench-peers``): the same FedAvg work in other systems.

LeNet-5 on Fashion-MNIST at 32×32, every client trains one epoch in every round, the server's model
is scored on the same test images after each. A bare PyTorch loop, Flower's own FedAvg in its
simulation, and this project's loopback take turns; the last two with one worker and with two. A
round's time is from the end of the one before to its own end; the first is left out. Memory is the
largest sum of the pages that single processes own. Times are also given relative to the bare loop
of the same turn.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from common import models
from common.data import load
from common.settings.config import Data
from deploy.flower import watchdog
from deploy.settings import app_folder
from tests.bench import page, record
from tests.bench.memory import own, peak
from tests.bench.peers.shared import LeNet5
from tests.bench.runs import FASHION

HERE = Path(__file__).parent
CLIENTS, ROUNDS, BATCH, LR, TEST = 8, 5, 32, 0.05, 1000
MB = 10**6


@dataclass(frozen=True)
class Found:
    """Of one run: seconds of its rounds but the first, until round 1 began, and bytes."""

    rounds: list[float]
    start: float
    memory: int
    accuracy: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--images", type=int, default=1500, help="images of each client (1500)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each system (3)")
    parser.add_argument("--out", type=Path, help="JSON file, to which they are added")
    options = parser.parse_args()
    network = models.build("lenet5", (1, 32, 32), 10, seed=1)
    shapes = [[*each.shape] for each in LeNet5().state_dict().values()]
    assert shapes == [[*each.shape] for each in network.state_dict().values()], "another LeNet-5"
    found: dict[str, list[Found]] = {}
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        prepare(folder, options.images)
        systems = {"bare PyTorch loop": script("bare", folder)}
        for workers in (1, 2):
            flower = script("flower_app", folder, workers)
            systems[f"Flower's FedAvg, {workers} at a time"] = flower
            systems[f"fedmosaic, {workers} at a time"] = ours(folder, options.images, workers)
        for _ in range(options.turns):
            for system, command in systems.items():
                found.setdefault(system, []).append(run(command, folder))
                last = found[system][-1]
                print(f"{system}: {median(last.rounds):.2f} s a round")
        imports = [import_torch() for _ in range(options.turns)]
    told = summary(found, imports) | {"images": options.images, "load": os.getloadavg()[0]}
    page.show({"peers": told}, "peers")
    record.add(options.out, "peers", value=told)


def script(name: str, folder: Path, *arguments: object) -> list[str]:
    """Return the command of a script beside this file, which reads the work in ``folder``."""
    return [sys.executable, str(HERE / f"{name}.py"), str(folder), *map(str, arguments)]


def prepare(folder: Path, images: int) -> None:
    """Write the images and the numbers that all are given."""
    wanted = Data(name="fashion-mnist", samples=CLIENTS * images, test_samples=TEST, image_size=32)
    data = load(wanted)
    mixed = np.random.default_rng(1).permutation(len(data.y))
    test: dict[str, Any] = {"test_x": data.x_test.numpy(), "test_y": data.y_test.numpy()}
    np.savez(folder / "work.npz", x=data.x.numpy()[mixed], y=data.y.numpy()[mixed], **test)
    told = {"clients": CLIENTS, "rounds": ROUNDS, "batch": BATCH, "lr": LR}
    (folder / "work.json").write_text(json.dumps(told), encoding="utf-8")


def ours(folder: Path, images: int, workers: int) -> list[str]:
    """This project's command."""
    settings = {**FASHION, "clients": CLIENTS, "rounds": ROUNDS, "device": "cpu"}
    settings |= {"data.samples": CLIENTS * images, "data.test-samples": TEST}
    settings |= {"data.test-fraction": 0.0, "data.image-size": 32}
    settings |= {"train.batch-size": BATCH, "train.lr": LR, "train.momentum": 0.0}
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    (folder / "ours.toml").write_text("".join(lines), encoding="utf-8")
    return script("ours", folder, workers)


def run(command: list[str], folder: Path) -> Found:
    """Run one system to its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    env |= {"FLWR_HOME": str(folder / "flwr"), "PYTHONPATH": str(app_folder())}
    start = time.time()
    with (folder / "output").open("w+") as output, (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            command, env=env, cwd=folder, stdout=output, stderr=errors, start_new_session=True
        )

        def look() -> Counter[str]:
            return Counter(bytes=sum(map(own, watchdog.living({process.pid}))))

        with peak(look, 0.5) as memory:
            process.wait()
        output.seek(0)
        errors.seek(0)
        lines = output.read().splitlines()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {errors.read()[-3000:]}")
    told = [json.loads(line) for line in lines if line.startswith('{"at"')]
    ready = next(line["at"] for line in told if "ready" in line)
    rounds = [line for line in told if "round" in line]
    assert [line["round"] for line in rounds] == [*range(1, ROUNDS + 1)], lines[-20:]
    ends = [line["at"] for line in rounds]
    took = [b - a for a, b in itertools.pairwise(ends)]
    return Found(took, ready - start, memory["bytes"], rounds[-1]["accuracy"])


def import_torch() -> float:
    """Seconds of a process that does nothing else."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def summary(found: dict[str, list[Found]], imports: list[float]) -> dict[str, Any]:
    """Medians; a ratio is that of the same turn."""
    bare = [median(one.rounds) for one in found["bare PyTorch loop"]]
    return {
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "clients": CLIENTS,
        "import torch": round(median(imports), 2),
        "systems": {
            name: {
                "seconds": round(median(median(one.rounds) for one in runs), 3),
                "times": round(
                    median(median(one.rounds) / b for one, b in zip(runs, bare, strict=True)), 2
                ),
                "memory": round(median(one.memory for one in runs) / MB),
                "start": round(median(one.start for one in runs), 2),
                "accuracy": round(median(one.accuracy for one in runs), 3),
            }
            for name, runs in found.items()
        },
    }


if __name__ == "__main__":
    main()
