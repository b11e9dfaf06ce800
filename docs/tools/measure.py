"""``python -m docs.tools.measure``: bytes and operations of one round of every method.

Each method plays the settings of its first row in the leaderboard's protocol, with less data.
``measured.json`` has the numbers that the methods' pages show. Operations are equal in every run.
A message has a few bytes more or less where another CPU rounds otherwise, because its numbers
beside the arrays are compressed.
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from common.files import write_atomically
from common.methods import facts, names
from common.settings.section import Value
from deploy.leaderboard import protocol as protocols
from deploy.report.table import operations, size
from deploy.run import launch
from deploy.study import paper_table

FILE = Path(__file__).with_name("measured.json")
COMMAND = "python -m docs.tools.measure"
CLIENTS, IMAGES = 5, 500
SMALL: dict[str, object] = {
    **{"clients": CLIENTS, "per-round": 0, "rounds": 3, "flops": True},
    "data.name": "digits",
    "data.image-size": 0,
    "data.samples": IMAGES,
    "data.test-samples": 100,
    "data.partition": "iid",
    "train.epochs": 1,
    "score.every": 3,
    "score.clients-every": 3,
    "score.bn": "batch",
    **{"noise.batches": 2, "noise.batch-size": 16},
}
"""Settings that replace those of the protocol. Only the last round has scores. Those of the noise
shorten the server's work, which is not recorded."""
ONE_SHOT: dict[str, object] = {"rounds": 2, "score.every": 2, "score.clients-every": 2}
"""A one-shot method has its training in the first round; its scores would be in it too."""
ADAPTED = "cnn2-lora4@0.25"
SETTING = f"{CLIENTS} clients that share {IMAGES} images of the digits (8×8), with 1 local epoch"


@cache
def first_row(method: str) -> protocols.Row:
    """Return the first row of a method in the leaderboard's protocol.

    A method without a row gets one on the mixed fleet, with the method's defaults; methods that
    exchange adapters get a network with them.
    """
    rows = (row for row in protocols.read().row if row.set["method"] == method)
    network = {"fleet": ADAPTED} if "adapter" in facts(method).sends else {}
    usual = protocols.Row(name=method, fleets=["mixed"], set={"method": method, **network})
    return next(rows, usual)


def settings(method: str) -> dict[str, Value]:
    """Return the flat run config with which a method is measured."""
    protocol, row = protocols.read(), first_row(method)
    small = SMALL | (ONE_SHOT if "one-shot" in row.kinds else {})
    if f"{method}.warm-up" in row.set:
        small[f"{method}.warm-up"] = 1
    table = paper_table.TableFile(
        title=method,
        seeds=[1],
        base={**protocol.base},
        row=[paper_table.Line(name=method, set={**protocol.settings(row, row.fleets[0])})],
        column=[paper_table.Line(name="a round", set=small)],
    )
    (cell,) = paper_table.cells(table)
    return cell.flat


def measure(method: str) -> dict[str, Any]:
    """Play a method and return the bytes and operations of all clients in one round.

    It is the round before the last one: it has no scores, and in methods of many rounds it follows
    what the first round prepares.
    """
    flat = settings(method)
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as folder:
        place = Path(folder) / "run"
        launch.cell(flat, place, workers=0, console=Console(quiet=True))
        lines = (place / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    entry = json.loads(lines[int(flat["rounds"]) - 1])
    moved, spent = entry["bytes"], entry["flops"]
    return {
        "fleet": first_row(method).fleets[0],
        "round": entry["round"],
        **{way: moved[way] for way in ("down", "up")},
        "operations": spent.get("clients", 0),
    }


def read() -> dict[str, dict[str, Any]]:
    """Return the recorded numbers of each method."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(chosen: Iterable[str]) -> None:
    """Measure the chosen methods, and write them with the recorded numbers of the others."""
    found = read() if FILE.exists() else {}
    for method in chosen:
        found[method] = measure(method)
        print(f"{method}: {sentence(found[method])}", flush=True)
        kept = {name: found[name] for name in names() if name in found}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in kept.items())
        write_atomically(FILE, f"{{\n{lines}\n}}\n".encode())


def sentence(one: dict[str, Any]) -> str:
    """Return the numbers of a client in one round, in words."""
    down, up = (size(one[way] / CLIENTS) for way in ("down", "up"))
    spent = operations(round(one["operations"] / CLIENTS))
    return f"A client receives {down}, sends {up} and trains with {spent}."


if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in names()]:
        sys.exit(f"{unknown[0]} is no built-in method; allowed: {', '.join(names())}")
    write(sys.argv[1:] or names())
