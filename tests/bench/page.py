"""``python -m tests.bench.page docs/scale-measured.md``: fill a page's tables from the records.

The pictures ``round.svg`` and ``clients.svg`` are drawn beside the page. A table stands between
``<!-- NAME -->`` and ``<!-- end -->``; NAME is one of ``TABLES``.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deploy.report.table import Table, markdown
from tests.bench import picture, timeline

HERE = Path(__file__).parent
MB, GB = 10**6, 10**9
CLIENTS, CHOSEN = 10_000, 1_000  #: of a federation on paper: registered, and in a round
WIRE = 125 * 10**6  #: bytes a second of a 1 Gbit/s line

Record = dict[str, Any]


def slopes(crowd: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes, and seconds of processor time a second, of the SuperLink for each idle SuperNode.

    They are slopes between the smallest and the largest number of SuperNodes measured. Of RSS: the
    SuperLink's part of the pages that it shares falls with every SuperNode beside it.
    """
    few, many = min(crowd, key=int), max(crowd, key=int)
    nodes = int(many) - int(few)
    if nodes == 0:
        raise ValueError(f"one number of SuperNodes ({many}) gives no slope: measure two at least")
    memory, processor = (
        [crowd[n][what]["superlink"] for n in (few, many)] for what in ("idle", "idle cpu")
    )
    more = memory[1]["rss"] - memory[0]["rss"], processor[1] - processor[0]
    return max(more[0], 0.0) / nodes, max(more[1], 0.0) / nodes


def load(down: float, up: float) -> dict[str, float]:
    """A round's load on the SuperLink: bytes, seconds of the line, bytes held at most.

    The line carries down and up to and from ``CHOSEN`` clients, both directions at once. What goes
    to everybody is held once, replies until the ServerApp has pulled them.
    """
    return {
        "bytes": CHOSEN * (down + up),
        "line": CHOSEN * max(down, up) / WIRE,
        "held": down + CHOSEN * up,
    }


def starts(grpc: Record, scale: Record) -> Table:
    """Seconds of a round by start."""
    head = ["start", "a round", "clients", "score", "once: census", "once: client scores"]
    rows = []
    for name, of in grpc["starts"].items():
        seconds = of["seconds"]
        cells = [seconds["total"], seconds["clients"], seconds["score"], *of["once"].values()]
        rows.append([name, *(f"{cell:.1f}" for cell in cells)])
    return Table(head, rows)


def message(grpc: Record, scale: Record) -> Table:
    """Where the seconds of a message go."""
    kinds = grpc["starts"]
    named = {**timeline.PHASES, "cpu": "processor time of the client's process"}
    rows = [
        [meaning, *(f"{of['phases'][phase]:.2f}" for of in kinds.values())]
        for phase, meaning in named.items()
    ]
    return Table(["phase", *kinds], rows)


def crowd(grpc: Record, scale: Record) -> Table:
    """Seconds and memory against the number of SuperNodes."""
    head = ["SuperNodes", "in a round", "a round, s", "idle, MB", "in the round, MB"]
    head += ["SuperLink", "each SuperNode", "its own", "each ClientApp", "ServerApp"]
    head += ["warm process and loops", "idle, % of a core"]
    rows = []
    for n, of in scale["crowd"].items():
        cells = [f"{of[when]['total'] / MB:.0f}" for when in ("idle", "busy")]
        for name in ("superlink", "SuperNodes", "ClientApps", "ServerApp"):
            part = of["busy"][name]
            cells.append(f"{part['pss'] / part['processes'] / MB:.0f}")
        own, nodes = of["idle"]["SuperNodes"].get("own"), of["idle"]["SuperNodes"]["processes"]
        cells.insert(4, "" if own is None else f"{own / nodes / MB:.0f}")
        shared = sum(of["busy"][name]["pss"] for name in ("warm", "task loops"))
        cells += [f"{shared / MB:.0f}", f"{100 * sum(of['idle cpu'].values()):.0f}"]
        rows.append([n, str(of["in a round"]), f"{of['round']:.1f}", *cells])
    return Table(head, rows)


def payload(grpc: Record, scale: Record) -> Table:
    """A model of 200 MB."""
    of = scale["payload"]
    names = {"superlink": "SuperLink", "SuperNodes": "a SuperNode", "ClientApps": "a ClientApp"}
    names["ServerApp"] = "ServerApp"
    rows = [["seconds of the exchange", f"{of['seconds']['clients']:.1f}"]]
    rows += [["MB/s, down and up together", str(of["MB/s"])]]
    rows += [
        [f"peak memory of {name}, MB", f"{of['peak'][key]['largest'] / MB:.0f}"]
        for key, name in names.items()
    ]
    anonymous = f"{of['peak']['ServerApp']['anonymous'] / MB:.0f}"
    rows.append(["of the ServerApp without pages of files, MB", anonymous])
    return Table(["200 MB to each of two clients and back", ""], rows)


def methods(grpc: Record, scale: Record) -> Table:
    """Bytes of a client, and 10,000 clients on paper."""
    head = ["method", "model", "down, kB", "up, kB", "a round, GB", "line, s", "held, MB"]
    rows = []
    for method, of in scale["traffic"].items():
        cost = load(of["down"], of["up"])
        cells = [of["down"] / 1000, of["up"] / 1000]
        row = [method, of["fleet"], *(f"{cell:.1f}" for cell in cells)]
        rows.append([*row, f"{cost['bytes'] / GB:.2f}", f"{cost['line']:.1f}"])
        rows[-1].append(f"{cost['held'] / MB:.0f}")
    return Table(head, rows)


def idle(grpc: Record, scale: Record) -> Table:
    """What idle SuperNodes cost the SuperLink."""
    memory, processor = slopes(scale["crowd"])
    rows = [
        ["memory", f"{memory / 1000:.0f} kB", f"{CLIENTS * memory / GB:.1f} GB"],
        ["processor", f"{1000 * processor:.2f} ms a second", f"{CLIENTS * processor:.1f} cores"],
    ]
    return Table(["of the SuperLink", "for an idle SuperNode", f"for {CLIENTS:,}"], rows)


def many(grpc: Record, scale: Record) -> Table:
    """Thousands of clients on one machine."""
    head = ["clients", "in a round", "rounds", "scored", "seconds", "processor, s", "census, s"]
    head += ["a round, s", "scores, s", "server, MB", "all, MB", "journal, MB", "report, MB"]
    rows = []
    for name, of in sorted(scale["many"].items(), key=lambda item: int(item[0])):
        counts = [f"{of[key]:,}" for key in ("in a round", "rounds", "scored")]
        seconds = [of[key] for key in ("seconds", "processor", "census", "round", "client scores")]
        sizes = [f"{of[key] / MB:.0f}" for key in ("server", "all")]
        sizes += [f"{of[key] / MB:.1f}" for key in ("journal", "report")]
        rows.append([f"{int(name):,}", *counts, *(f"{each:.1f}" for each in seconds), *sizes])
    return Table(head, rows)


def held(grpc: Record, scale: Record) -> Table:
    """The server's memory by the clients of a round."""
    rows = [
        [name, n, f"{int(n) * of['model'] / MB:.0f}", f"{of['most'] / MB:.0f}"]
        for name, cases in scale["held"].items()
        for n, of in sorted(cases.items(), key=lambda item: int(item[0]))
    ]
    return Table(["", "clients", "their replies, MB", "most anonymous memory, MB"], rows)


def peers(grpc: Record, scale: Record) -> Table:
    """The same work in other systems."""
    told = scale["peers"]
    head = ["", "a round, s", "times the bare loop", "own memory, MB", "to round 1, s"]
    head += ["times import torch"]
    rows = []
    for name, of in told["systems"].items():
        cells = [f"{of['seconds']:.2f}", f"{of['times']:.2f}", str(of["memory"])]
        begun = f"{of['start'] / told['import torch']:.1f}"
        rows.append([name, *cells, f"{of['start']:.1f}", begun])
    return Table(head, rows)


def cluster(grpc: Record, scale: Record) -> Table:
    """A Ray cluster beside the loopback."""
    head = ["", "", "loopback, s", "Ray, s", "times"]
    rows = []
    for name, phases in scale["cluster"]["cases"].items():
        for phase, of in phases.items():
            cells = [f"{of[where]:.2f}" for where in ("loopback", "ray", "times")]
            rows.append([name, phase, *cells])
    return Table(head, rows, align="llr")


TABLES: dict[str, Callable[[Record, Record], Table]] = {
    "starts": starts,
    "message": message,
    "crowd": crowd,
    "payload": payload,
    "methods": methods,
    "idle": idle,
    "many": many,
    "held": held,
    "peers": peers,
    "cluster": cluster,
}


def filled(text: str, tables: Mapping[str, Callable[[], Table]]) -> str:
    """``text`` with each of its tables made anew; ``ValueError`` for a name that is no table's."""

    def table(found: re.Match[str]) -> str:
        if found[1] not in tables:
            raise ValueError(f"no table is called {found[1]!r}; there are {', '.join(tables)}")
        return f"<!-- {found[1]} -->\n{markdown(tables[found[1]]())}<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def fill(text: str, grpc: Record, scale: Record) -> str:
    """The page on scale with every table made anew."""
    return filled(text, {name: partial(make, grpc, scale) for name, make in TABLES.items()})


def show(grpc: Record, scale: Record, *names: str) -> None:
    """Print these tables."""
    for name in names:
        print(f"{TABLES[name].__doc__}\n{markdown(TABLES[name](grpc, scale))}")


def main() -> None:
    page = Path(sys.argv[1])
    grpc, scale = (json.loads((HERE / name).read_text()) for name in ("grpc.json", "scale.json"))
    page.write_text(fill(page.read_text(encoding="utf-8"), grpc, scale), encoding="utf-8")
    picture.save(page.parent, grpc, scale)


if __name__ == "__main__":
    main()
