"""Canaries: a short run of each method in a recorded table, whose digest shows a stale record.

Before its first cell ``python -m tests.papers table`` runs a canary for each method: the method's
first cell, cut to two rounds and single epochs. The digest of its results is stored in
``canaries.json`` beside the record's folder, under the folder's name. If the same short run gives
another digest later, the code computes something else. The second round covers steps that a method
starts after the first. Canaries that were recorded with one round are repeated with one.

Digests are compared only between machines with the same torch and CPU model, because others may sum
in another order. A record from several machines therefore has canaries of each.
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
from tests.papers import place

NAME = "canaries.json"
ROUNDS = 2
Launch = Callable[[Flat, Path], None]


@final
@dataclass(frozen=True)
class Canaries:
    """The canaries of one machine.

    ``where``: torch and processor; ``digests``: method -> digest of its short run's results;
    ``rounds``: most rounds of a short run.
    """

    where: str
    digests: dict[str, str]
    rounds: int = ROUNDS


FILE = TypeAdapter(dict[str, list[Canaries]])


def save(canaries: Sequence[Canaries], folder: Path) -> None:
    """Write the canaries of one machine or several for the record in ``folder``."""
    every = _read(path := folder.parent / NAME) | {folder.name: list(canaries)}
    write_atomically(path, FILE.dump_json(dict(sorted(every.items())), indent=1) + b"\n")


def load(folder: Path) -> list[Canaries]:
    """Return the canaries of the record in ``folder``. Raises ``ValueError`` for a damaged file."""
    return _read(folder.parent / NAME).get(folder.name, [])


def _read(path: Path) -> dict[str, list[Canaries]]:
    try:
        return FILE.validate_json(path.read_bytes()) if path.exists() else {}
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"]
        raise ValueError(f"{path} is no record of canaries: {why}") from error


def made_here(recorded: Sequence[Canaries]) -> Canaries | None:
    """Return the canaries that this machine can repeat; None if there are none."""
    return next((one for one in recorded if one.where == here()), None)


def here() -> str:
    """Return this machine's torch, instruction set and processor, on which digests depend."""
    kind = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {platform.machine()}, {kind}, {processor()}"


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's maker, family and model from Linux; elsewhere Python's name for it.

    The instruction set is not enough: two machines with the same torch and AVX-512 gave other bits.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (line.partition(":")[::2] for line in reversed(lines))  # the first processor is kept
    fields = {name.strip(): value.strip() for name, value in pairs}
    names = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    words = [fields[name] for name in names if name in fields]
    return " ".join(words) or platform.processor() or "unknown"


def first_cells(file: TableFile, of: Sequence[CellRun] = ()) -> Iterator[CellRun]:
    """Yield the first cell of each method of a table; with ``of`` only for these cells' methods."""
    every = list(cells(file))
    left = {cell.flat["method"] for cell in of or every}
    for cell in every:
        if (method := cell.flat["method"]) in left:
            left.remove(method)
            yield cell


def short(flat: Flat, rounds: int = ROUNDS) -> Flat:
    """Return the settings cut to ``rounds``, single epochs, and few steps on the server.

    A warm-up ends before the last round.
    """
    rounds = min(rounds, int(flat["rounds"]))
    # by the key's last word; "up" is that of a warm-up
    most = {"epochs": 1, "batches": 2, "iterations": 2, "steps": 2, "up": rounds - 1}
    words = {key: re.split("[.-]", key)[-1] for key, value in flat.items() if type(value) is int}
    cut = {key: min(int(flat[key]), most[word]) for key, word in words.items() if word in most}
    return {**flat, **cut, "rounds": rounds}


def run(
    file: TableFile,
    launch: Launch,
    tell: Callable[[str], None],
    rounds: int = ROUNDS,
    of: Sequence[CellRun] = (),
) -> Canaries:
    """Run the canaries of a table and return their digests.

    ``launch`` runs one in a folder; ``tell`` is called with its method. With ``of`` only the
    methods of these cells run.
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
    """Run this machine's canaries, compare them with the record in ``folder`` and add missing ones.

    With ``of`` only the methods of these cells run.

    Raises ``ValueError`` if a method gives other results than when the record was begun.
    """
    recorded = load(folder)
    mine = made_here(recorded)
    now = run(file, launch, tell, mine.rounds if mine else ROUNDS, of)
    if mine and (other := changed(mine, now)):
        raise ValueError(
            f"{folder.parent / NAME}: {', '.join(other)} gives other numbers now than when this "
            "record was begun; all cells of a table need the same code, so give --out another "
            "folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    recorded = load(folder)  # another process may have added canaries meanwhile
    mine = made_here(recorded)
    now = replace(now, digests={**(mine.digests if mine else {}), **now.digests})
    save([*(one for one in recorded if one is not mine), now], folder)


def digest(summary: Mapping[str, object]) -> str:
    """Return the SHA-256 of a run's results: the weights, and the metrics of server and clients."""
    parts = ("weights_sha256", "accuracy", "accuracies", "metrics", "clients")
    results = {key: summary.get(key) for key in parts}
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def changed(recorded: Canaries, now: Canaries) -> list[str]:
    """Return the methods in both whose digests differ."""
    both = recorded.digests.keys() & now.digests.keys()
    return sorted(name for name in both if now.digests[name] != recorded.digests[name])


def stale(
    tables: Sequence[str], records: Path, launch: Launch, tell: Callable[[str], None]
) -> dict[str, str]:
    """Run the canaries of recorded tables; return stale table -> the methods whose digests differ.

    ``tell`` is called with the result for each table. A table without canaries, or with canaries
    of another torch or processor, is reported and does not count as stale.
    """
    stale_methods = {}
    for table in tables:
        recorded = load(records / table)
        mine = made_here(recorded)
        if not recorded:
            tell(f"{table}: recorded without canaries, so it cannot be checked")
        elif mine is None:
            places = " and ".join(one.where for one in recorded)
            tell(f"{table}: recorded with {places}, this machine has {here()}")
        else:
            now = run(paper_table.read(place(table)), launch, tell, mine.rounds)
            if methods := changed(mine, now):
                stale_methods[table] = ", ".join(methods)
            tell(f"{table}: {'stale: ' + stale_methods[table] if methods else 'as recorded'}")
    return stale_methods
