"""Whole runs measured: loopback's workers against one, and a round on each runtime."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from common.parse import defaults
from common.settings.config import Value
from deploy.report.read import Run, read
from deploy.run import launch, preflight
from deploy.settings import numbers

Settings = Mapping[str, Any]
FASHION: dict[str, Any] = {
    **{"method": "fedavg", "fleet": "lenet5", "train.epochs": 1, "score.clients-every": 0},
    **{"data.name": "fashion-mnist", "data.partition": "iid"},
}
"""FedAvg of LeNet-5 on Fashion-MNIST, one epoch a round: the work that other benchmarks share."""
ROUNDS = 3
SMALL: dict[str, Value] = FASHION | {"data.name": "digits", "clients": 4, "rounds": ROUNDS}
HEAVY: dict[str, Value] = SMALL | {"fleet": "resnet8", "clients": 8, "train.epochs": 4}


def played(work: Settings, runtime: str, workers: int = 1, *, warm: bool | None = None) -> Run:
    """Play a run to its end, and return what it has written."""
    method = str(work["method"])
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        flat = numbers({**defaults(method), **work}, method)
        resolved, out = preflight.fresh(flat, runtime, Path(folder) / "run")
        launch.launch(resolved, out, workers=workers, console=Console(quiet=True), warm_start=warm)
        return read(out)


def seconds(work: Settings, runtime: str, workers: int, warm: bool = False) -> dict[str, float]:
    """Return the mean seconds by phase of rounds 2 … of one run (round 1 pays for starting)."""
    entries = [e for e in played(work, runtime, workers, warm=warm).entries if e.round >= 2]
    names = sorted({name for entry in entries for name in entry.seconds})
    return {name: statistics.fmean(e.seconds.get(name, 0.0) for e in entries) for name in names}


def speed_up(pairs: int) -> tuple[float, float, float]:
    """Seconds that clients take with one worker and with two (medians), and the median ratio."""
    times = [
        (seconds(HEAVY, "loopback", 1)["clients"], seconds(HEAVY, "loopback", 2)["clients"])
        for _ in range(pairs)
    ]
    return (
        statistics.median(one for one, _ in times),
        statistics.median(two for _, two in times),
        statistics.median(one / two for one, two in times),
    )


def by_runtime(names: Sequence[str]) -> dict[str, Any]:
    """Seconds by phase of a round of the same small work on each runtime."""
    return {n: seconds(SMALL, n.split(" ")[0], 2, warm=n.endswith("warm")) for n in names}


def one_reply(start: str) -> float:
    """Return the seconds until the only client has replied, with a ``start``: warm or cold."""
    return seconds({**SMALL, "clients": 1}, "grpc", 1, warm=start == "warm")["clients"]


REPLIES: dict[str, Value] = SMALL | {"clients": 12, "per-round": 4, "rounds": 12, "profiles": "pi5"}
REPLIES |= {"data.samples": 120, "data.test-samples": 50, "data.min-size": 1, "score.every": 100}
STEPS: dict[str, Value] = {"mode": "buffered", "buffer.size": 4, "profiles": "pi5,pi4,phone-low"}


def asynchronous(pairs: int) -> dict[str, float]:
    """Return the seconds of a reply in synchronous and in asynchronous rounds, and their ratio.

    The clients' work is tiny, so that it is the overhead that counts. Medians of the pairs.
    """
    both = [
        [seconds(REPLIES | more, "loopback", 1)["total"] / 4 for more in ({}, STEPS)]
        for _ in range(pairs)
    ]
    return {
        "synchronous": statistics.median(sync for sync, _ in both),
        "asynchronous": statistics.median(steps for _, steps in both),
        "ratio": statistics.median(steps / sync for sync, steps in both),
    }
