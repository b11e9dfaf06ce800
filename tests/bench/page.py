"""``python -m tests.bench.page``: fill the tables of docs/scale-measured.md from the records."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deploy.report.table import Table, markdown
from tests.bench import record
from tests.bench.record import Recorded

PAGE = Path(__file__).parents[2] / "docs" / "scale-measured.md"
MB, GB = 10**6, 10**9
CLIENTS = 10_000  #: of a federation on paper


def slopes(crowd: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes, and seconds of processor time a second, of the SuperLink for each idle SuperNode.

    They are slopes between the smallest and the largest number of SuperNodes measured. Of RSS: the
    SuperLink's part of the pages that it shares falls with every SuperNode beside it.
    """
    few, many = min(crowd, key=int), max(crowd, key=int)
    nodes = int(many) - int(few)
    if nodes == 0:
        raise ValueError(f"one number of SuperNodes ({many}) gives no slope: measure two at least")
    memory = [crowd[n]["idle"]["superlink"] for n in (few, many)]
    processor = [crowd[n]["idle cpu"]["superlink"] for n in (few, many)]
    more = memory[1]["rss"] - memory[0]["rss"], processor[1] - processor[0]
    return max(more[0], 0.0) / nodes, max(more[1], 0.0) / nodes


def starts(records: Recorded) -> Table:
    """Seconds of a round by start."""
    head = ["start", "a round", "clients", "score", "once: census", "once: client scores"]
    rows = []
    for name, of in records["starts"].items():
        seconds = of["seconds"]
        cells = [seconds["total"], seconds["clients"], seconds["score"], *of["once"].values()]
        rows.append([name, *(f"{cell:.1f}" for cell in cells)])
    return Table(head, rows)


def crowd(records: Recorded) -> Table:
    """Seconds and memory against the number of SuperNodes."""
    head = ["SuperNodes", "in a round", "a round, s", "idle, MB", "in the round, MB"]
    head += ["SuperLink", "each SuperNode", "its own", "each ClientApp", "ServerApp"]
    head += ["warm process and loops", "idle, % of a core"]
    rows = []
    for n, of in records["crowd"].items():
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


def payload(records: Recorded) -> Table:
    """A model of 200 MB."""
    of = records["payload"]
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


def idle(records: Recorded) -> Table:
    """What idle SuperNodes cost the SuperLink."""
    memory, processor = slopes(records["crowd"])
    rows = [
        ["memory", f"{memory / 1000:.0f} kB", f"{CLIENTS * memory / GB:.1f} GB"],
        ["processor", f"{1000 * processor:.2f} ms a second", f"{CLIENTS * processor:.1f} cores"],
    ]
    return Table(["of the SuperLink", "for an idle SuperNode", f"for {CLIENTS:,}"], rows)


def many(records: Recorded) -> Table:
    """Thousands of clients on one machine."""
    head = ["clients", "in a round", "rounds", "scored", "seconds", "processor, s", "census, s"]
    head += ["a round, s", "scores, s", "server, MB", "all, MB", "journal, MB", "report, MB"]
    rows = []
    for name, of in sorted(records["many"].items(), key=lambda item: int(item[0])):
        counts = [f"{of[key]:,}" for key in ("in a round", "rounds", "scored")]
        seconds = [of[key] for key in ("seconds", "processor", "census", "round", "client scores")]
        sizes = [f"{of[key] / MB:.0f}" for key in ("server", "all")]
        sizes += [f"{of[key] / MB:.1f}" for key in ("journal", "report")]
        rows.append([f"{int(name):,}", *counts, *(f"{each:.1f}" for each in seconds), *sizes])
    return Table(head, rows)


def held(records: Recorded) -> Table:
    """The server's memory by the clients of a round."""
    rows = [
        [name, n, f"{int(n) * of['model'] / MB:.0f}", f"{of['most'] / MB:.0f}"]
        for name, cases in records["held"].items()
        for n, of in sorted(cases.items(), key=lambda item: int(item[0]))
    ]
    return Table(["", "clients", "their replies, MB", "most anonymous memory, MB"], rows)


def peers(records: Recorded) -> Table:
    """The same work in other systems."""
    told = records["peers"]
    head = ["", "a round, s", "times the bare loop", "own memory, MB", "to round 1, s"]
    head += ["times import torch"]
    rows = []
    for name, of in told["systems"].items():
        cells = [f"{of['seconds']:.2f}", f"{of['times']:.2f}", str(of["memory"])]
        begun = f"{of['start'] / told['import torch']:.1f}"
        rows.append([name, *cells, f"{of['start']:.1f}", begun])
    return Table(head, rows)


TABLES: dict[str, Callable[[Recorded], Table]] = {
    "starts": starts,
    "crowd": crowd,
    "payload": payload,
    "idle": idle,
    "many": many,
    "held": held,
    "peers": peers,
}


def fill(text: str, records: Recorded) -> str:
    """Return the page on scale with every table made anew."""
    return record.filled(text, {name: partial(make, records) for name, make in TABLES.items()})


def show(records: Recorded, *names: str) -> None:
    """Print these tables."""
    for name in names:
        print(f"{TABLES[name].__doc__}\n{markdown(TABLES[name](records))}")


def recorded() -> Recorded:
    """Return the records."""
    return record.read(Path(__file__).with_name("scale.json"))


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8")
