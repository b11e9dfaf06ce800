"""A short run of each method in a recorded table, whose digest tells whether the record is stale.

A record is of the code that made it. Before its first cell ``fedmosaic table`` runs a canary for
each method: the method's first cell, cut to one round and single epochs, of which only the digest
of its numbers is kept, in ``canaries.json`` beside the record. If the same short run gives another
digest later, then the code computes something else, and what was recorded no longer speaks for it.

Digests are the same only where torch and the model of the processor are the same; elsewhere nothing
is said. Two models with the same instructions may still add in another order.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from common.config import Value
from common.files import write_atomically
from deploy.study.paper_table import CellRun, Flat, TableFile, cells, record

NAME = "canaries.json"
Launch = Callable[[Flat, Path], None]


@final
@dataclass(frozen=True)
class Canaries:
    """``where``: torch and processor; ``digests``: of what the short run came to, by method."""

    where: str
    digests: dict[str, str]

    def save(self, folder: Path) -> None:
        told = {"where": self.where, "digests": self.digests}
        write_atomically(folder / NAME, (json.dumps(told, indent=1) + "\n").encode())

    @staticmethod
    def load(folder: Path) -> Canaries | None:
        """Those that were recorded, if any. Raises ``ValueError`` for a damaged file."""
        path = folder / NAME
        if not path.exists():
            return None
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            digests = {str(name): str(digest) for name, digest in told["digests"].items()}
            return Canaries(str(told["where"]), digests)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no record of canaries: {error}") from error


def here() -> str:
    """What digests depend on, beside the code."""
    kind = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {platform.machine()}, {kind}, {processor()}"


def processor(told: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's maker, family and model as Linux tells them; elsewhere Python's word for it.

    Instructions alone do not tell: two machines with the same torch and AVX-512 gave other bits.
    """
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    words = (line.partition(":")[::2] for line in reversed(lines))  # the first processor wins
    of = {name.strip(): value.strip() for name, value in words}
    names = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    return " ".join(of[name] for name in names if name in of) or platform.processor() or "unknown"


def first_cells(file: TableFile) -> Iterator[CellRun]:
    """The first cell of each method of a table."""
    met = set()
    for cell in cells(file):
        if (method := cell.flat["method"]) not in met:
            met.add(method)
            yield cell


def short(flat: Flat) -> Flat:
    """The same run cut to one round, single epochs, and few steps on the server."""
    return {**flat, **{key: _cut(key, value) for key, value in flat.items()}, "rounds": 1}


def _cut(key: str, value: Value) -> Value:
    last = key.rpartition(".")[2]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if last == "epochs" or last.endswith("-epochs"):
        return min(value, 1)
    if last in ("batches", "iterations", "steps") or last.endswith("-steps"):
        return min(value, 2)
    return value


def run(file: TableFile, launch: Launch, tell: Callable[[str], None]) -> Canaries:
    """Run the canaries of a table; ``launch`` runs one in a folder, ``tell`` hears its method."""
    digests = {}
    for cell in first_cells(file):
        method = str(cell.flat["method"])
        tell(method)
        with tempfile.TemporaryDirectory(prefix="canary-") as folder:
            place = Path(folder) / "run"
            launch(short(cell.flat), place)
            digests[method] = digest(record(place) or {})
    return Canaries(here(), digests)


def digest(summary: Mapping[str, object]) -> str:
    """SHA-256 of what a run came to: the weights, and the numbers of server and clients."""
    parts = ("weights_sha256", "accuracy", "accuracies", "metrics", "clients")
    told = {key: summary.get(key) for key in parts}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def changed(recorded: Canaries, now: Canaries) -> list[str]:
    """The methods whose canary gives another digest than recorded."""
    return [name for name, of in recorded.digests.items() if now.digests.get(name) != of]
