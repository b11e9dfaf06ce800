"""A short run of each method in a recorded table, whose digest tells whether the record is stale.

Before its first cell ``fedmosaic table`` runs a canary for each method: the method's first cell,
cut to two rounds and single epochs. The digest of its numbers is kept in ``canaries.json`` beside
the record. If the same short run gives another digest later, the code computes something else. The
second round is for what a method begins after the first. Canaries that were recorded with one round
are repeated with one.

Digests are compared only where torch and the model of the processor are the same; others may add in
another order. So a record that was made on several machines keeps canaries of each.
"""

import hashlib
import json
import platform
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from pydantic import TypeAdapter, ValidationError

from common.files import write_atomically
from deploy.study import paper_table
from deploy.study.paper_table import CellRun, TableFile, cells
from deploy.study.records import Flat, completed

NAME = "canaries.json"
ROUNDS = 2
Launch = Callable[[Flat, Path], None]


@final
@dataclass(frozen=True)
class Canaries:
    """Those of one machine.

    ``where``: torch and processor; ``digests``: of what the short run came to, by method;
    ``rounds``: the most that a short run had.
    """

    where: str
    digests: dict[str, str]
    rounds: int = ROUNDS


FILE = TypeAdapter(list[Canaries])


def save(made: Sequence[Canaries], folder: Path) -> None:
    """Write ``canaries.json`` of one machine or several in ``folder``."""
    write_atomically(folder / NAME, FILE.dump_json(list(made), indent=1) + b"\n")


def load(folder: Path) -> list[Canaries]:
    """Those that were recorded in ``folder``, if any. Raises ``ValueError`` for a damaged file."""
    path = folder / NAME
    try:
        return FILE.validate_json(path.read_bytes()) if path.exists() else []
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"]
        raise ValueError(f"{path} is no record of canaries: {why}") from error


def made_here(recorded: Sequence[Canaries]) -> Canaries | None:
    """Those among them that this machine can repeat."""
    return next((one for one in recorded if one.where == here()), None)


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


def first_cells(file: TableFile, of: Sequence[CellRun] = ()) -> Iterator[CellRun]:
    """The first cell of each method of a table; ``of``: of those that these cells have."""
    every = list(cells(file))
    left = {cell.flat["method"] for cell in of or every}
    for cell in every:
        if (method := cell.flat["method"]) in left:
            left.remove(method)
            yield cell


def short(flat: Flat, rounds: int = ROUNDS) -> Flat:
    """The same run cut to ``rounds``, single epochs, and few steps on the server."""
    most = {"epochs": 1, "batches": 2, "iterations": 2, "steps": 2}  # by the key's last word
    words = {key: re.split("[.-]", key)[-1] for key, value in flat.items() if type(value) is int}
    cut = {key: min(int(flat[key]), most[word]) for key, word in words.items() if word in most}
    return {**flat, **cut, "rounds": min(rounds, int(flat["rounds"]))}


def run(
    file: TableFile,
    launch: Launch,
    tell: Callable[[str], None],
    rounds: int = ROUNDS,
    of: Sequence[CellRun] = (),
) -> Canaries:
    """Run the canaries of a table; ``launch`` runs one in a folder, ``tell`` hears its method.

    ``of``: only those of the methods that these cells have.
    """
    digests = {}
    for cell in first_cells(file, of):
        method = str(cell.flat["method"])
        tell(method)
        with tempfile.TemporaryDirectory(prefix="canary-") as folder:
            place = Path(folder) / "run"
            launch(short(cell.flat, rounds), place)
            digests[method] = digest(completed(place) or {})
    return Canaries(here(), digests, rounds)


def keep(
    file: TableFile,
    folder: Path,
    launch: Launch,
    tell: Callable[[str], None],
    of: Sequence[CellRun] = (),
) -> None:
    """Have canaries of this machine beside the record in ``folder``: make them or repeat them.

    A method that had none yet is added. ``of``: only the methods of these cells.

    Raises ``ValueError`` if some method gives other numbers than when the record was begun.
    """
    recorded = load(folder)
    mine = made_here(recorded)
    now = run(file, launch, tell, mine.rounds if mine else ROUNDS, of)
    if mine and (other := changed(mine, now)):
        raise ValueError(
            f"{folder / NAME}: {', '.join(other)} gives other numbers now than when this record "
            "was begun; a table is of one code, so give --out another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    recorded = load(folder)  # another process may have added its own meanwhile
    mine = made_here(recorded)
    now = replace(now, digests={**(mine.digests if mine else {}), **now.digests})
    save([*(one for one in recorded if one is not mine), now], folder)


def digest(summary: Mapping[str, object]) -> str:
    """SHA-256 of what a run came to: the weights, and the numbers of server and clients."""
    parts = ("weights_sha256", "accuracy", "accuracies", "metrics", "clients")
    told = {key: summary.get(key) for key in parts}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def changed(recorded: Canaries, now: Canaries) -> list[str]:
    """The methods of both whose canary gives another digest than recorded."""
    both = recorded.digests.keys() & now.digests.keys()
    return sorted(name for name in both if now.digests[name] != recorded.digests[name])


def stale(
    tables: Sequence[str], records: Path, launch: Launch, tell: Callable[[str], None]
) -> dict[str, str]:
    """Recorded tables whose canaries give another digest now: of which methods, by table.

    ``tell`` hears of each table what was found. A table without canaries, or with those of another
    torch or processor, is said to be so and is not called stale.
    """
    found = {}
    for table in tables:
        recorded = load(records / table)
        mine = made_here(recorded)
        if not recorded:
            tell(f"{table}: recorded without canaries, so nothing can be said")
        elif mine is None:
            places = " and ".join(one.where for one in recorded)
            tell(f"{table}: recorded with {places}, here is {here()}")
        else:
            now = run(paper_table.read(Path(table)), launch, tell, mine.rounds)
            if methods := changed(mine, now):
                found[table] = ", ".join(methods)
            tell(f"{table}: {'stale: ' + found[table] if methods else 'as recorded'}")
    return found
