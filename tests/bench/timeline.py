"""Where the seconds of a round over gRPC go, from the marks that ``tap`` leaves."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

TAP = Path(__file__).with_name("tap")  #: to be first in PYTHONPATH

#: phase of a client's message -> the marks between which it lies; see ``PHASES`` for what it is
BETWEEN = {
    "wait": ("pushed", "pulled"),
    "start": ("pulled", "started"),
    "unpack": ("started", "called"),
    "import": ("called", "imported"),
    "load": ("imported", "ready"),
    "train": ("ready", "trained"),
    "reply": ("trained", "sent"),
}
PHASES = {
    "wait": "until the SuperNode looks for messages",
    "start": "until the client's process begins",
    "unpack": "message and app bundle, begin of the app",
    "import": "the app's modules",
    "load": "data, partition, model",
    "train": "local training",
    "reply": "until the SuperNode has sent the reply",
    "collect": "from the last reply to the end of the exchange",
}


@final
@dataclass(frozen=True)
class Mark:
    at: float
    process: int
    name: str
    cpu: float  #: processor seconds of the process so far


def read(path: Path) -> list[Mark]:
    """The marks in order of time."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return sorted(
        (Mark(float(at), int(process), name, float(cpu)) for at, process, name, cpu in lines),
        key=lambda mark: mark.at,
    )


def exchanges(marks: list[Mark]) -> list[list[Mark]]:
    """The marks of each exchange of the server, from its push to its collection."""
    found: list[list[Mark]] = []
    for mark in marks:
        if mark.name == "pushed":
            found.append([])
        if found:
            found[-1].append(mark)
    return found


def phases(exchange: list[Mark]) -> dict[str, float]:
    """Mean seconds of each phase over the clients of an exchange that trains, and their CPU.

    A client's marks come from its SuperNode and from the process of its message; both are told
    apart by order, since a SuperNode has one message at a time.
    """
    first = {mark.name: mark.at for mark in reversed(exchange)}
    workers = _clients(exchange)
    if not workers or "collected" not in first:
        return {}
    seconds: dict[str, list[float]] = defaultdict(list)
    for marks in workers:
        at = {"pushed": first["pushed"]} | {name: mark.at for name, mark in marks.items()}
        for phase, (begin, end) in BETWEEN.items():
            if begin in at and end in at:
                seconds[phase].append(at[end] - at[begin])
        if "ended" in marks and "started" in marks:
            seconds["cpu"].append(marks["ended"].cpu)
    found = {phase: fmean(values) for phase, values in seconds.items()}
    sent = [mark.at for mark in exchange if mark.name == "sent"]
    found["collect"] = first["collected"] - max(sent, default=first["collected"])
    return found


def _clients(exchange: list[Mark]) -> list[dict[str, Mark]]:
    """The marks of each client's message: of its process, and of the SuperNode around it.

    Which SuperNode started which process is not marked; all of them are alike, so the k-th pull
    goes with the k-th start, and the k-th end of a training with the k-th sending.
    """
    of: dict[int, dict[str, Mark]] = defaultdict(dict)
    for mark in exchange:
        of[mark.process].setdefault(mark.name, mark)
    processes = [marks for marks in of.values() if "trained" in marks]
    for outer, inner in (("pulled", "started"), ("sent", "trained")):
        outside = sorted((m[outer] for m in of.values() if outer in m), key=lambda mark: mark.at)
        processes.sort(key=lambda marks: marks[inner].at)
        if len(outside) == len(processes):
            for marks, mark in zip(processes, outside, strict=True):
                marks[outer] = mark
    return processes
