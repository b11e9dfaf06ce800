"""Soak: a federation over gRPC whose clients join, leave, are killed, stopped and cut off.

``python -m tests.bench.soak`` (``make soak``) plays ``--rounds`` rounds of SCAFFOLD, whose clients
keep state, with the faults of ``--seed``; with ``--mode buffered`` (``make soak MODE=buffered``) it
plays asynchronous rounds of FedAvg in the order in which updates arrive. It needs Linux.
Where root may make network namespaces, each machine has one; elsewhere all nodes are on this
machine, and no network is cut. The run must complete, and a replay of its journal on loopback must
give the same weights. The figures go to ``soak-MODE.json`` beside this file and into docs/soak.md;
``--table`` only writes the page.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, final

from deploy.report.table import Table
from tests.bench.memory import anonymous
from tests.bench.record import ROOT, Recorded, filled, read, write
from tests.support import namespaces
from tests.support.faults import Machines, name_of, processes, settings
from tests.support.namespaces import Host
from tests.support.tiny import TinyRun, play

MODES = ("synchronous", "buffered")
RECORDED = {mode: Path(__file__).with_name(f"soak-{mode}.json") for mode in MODES}
PAGE = ROOT / "docs" / "soak.md"
CLIENTS, LATER = 10, (8, 9)  #: clients, and those whose nodes start after the run
AWAY = 3  #: most clients with a fault at one time
CHANCE = 0.2  #: probability of a fault in a round
LENGTH = (3, 8)  #: rounds of a fault
KINDS = ("leave", "kill", "stop", "cut")
SMALL = {"fleet": "mlp@0.25", "global_model": "mlp@0.25", "data__samples": 360}
RUN: dict[str, dict[str, Any]] = {
    "synchronous": {**SMALL, "method": "scaffold", "per_round": 5, "min_replies": 0.25},
    "buffered": {
        **{**SMALL, "method": "fedavg", "mode": "buffered"},
        **{"buffer__size": 3, "buffer__concurrency": 5},
    },
}
ELASTIC = {"min_clients": 4, "leave_after": 1, "timeout": 60.0, "wait": 300.0}
PARTS = {
    "flower-superlin": "SuperLink",
    "flower-superexe": "SuperExec",
    "flwr-serverapp": "ServerApp",
    "flower-supernod": "SuperNode",
    "fedmosaic": "supervisor of a node",
    "python": "warm process of a node",
}
LEAST = 12  #: least rounds of a soak: the late nodes and a fault have ended before the last
LIVED = {"synchronous": 12, "buffered": 40}
"""Least rounds of a process whose memory counts: it has trained after a quarter of them."""
FLAT = 1.1, 4.0  #: most memory at the end of a life: times that after a quarter, plus MB


@final
@dataclass(frozen=True)
class Fault:
    """A fault of client ``k``, or its first start (``join``), after round t until round ``end``."""

    t: int
    end: int
    k: int
    kind: str


def schedule(rounds: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Return the faults of a seed, in order of their rounds; all end before the last rounds."""
    rng, last = random.Random(seed), rounds - 2
    joins = [Fault(t := rng.randint(2, max(2, rounds // 4)), t, k, "join") for k in LATER]
    busy = dict.fromkeys(range(CLIENTS), 1) | {one.k: one.t + 3 for one in joins}
    faults = list(joins)
    for t in range(2, last):
        free = [k for k, until in busy.items() if until < t]
        if rng.random() < CHANCE and len(free) > CLIENTS - AWAY:
            end = min(t + rng.randint(*LENGTH), last)
            fault = Fault(t, end, rng.choice(free), rng.choice(kinds))
            busy[fault.k] = fault.end + 3
            faults.append(fault)
    return sorted(faults, key=lambda fault: fault.t)


@final
class Soak:
    """A running federation with its faults; ``hosts``: the clients' machines, if they have any."""

    def __init__(self, run: Machines, hosts: Sequence[Host]) -> None:
        self.run, self._hosts = run, hosts
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._lives: dict[tuple[str, int], list[int]] = {}

    def begin(self, fault: Fault) -> None:
        """Let the fault begin."""
        if fault.kind == "cut":
            self._hosts[fault.k].cut()
        elif fault.kind == "join":
            self.run.start_node(fault.k)
        else:
            signals = {"leave": signal.SIGTERM, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}
            pids = self.run.pids(fault.k)
            if fault.kind == "leave":  # the node ends its other processes
                pids = {pid for pid in pids if name_of(pid) == "fedmosaic"}
            send(pids, signals[fault.kind])

    def end(self, fault: Fault) -> None:
        """Let the fault end: the client comes back."""
        if fault.kind == "cut":
            self._hosts[fault.k].mend()
        elif fault.kind == "stop":
            send(self.run.pids(fault.k), signal.SIGCONT)
        elif fault.kind != "join":
            send(self.run.pids(fault.k), signal.SIGKILL)  # of a node that is still ending
            self.run.start_node(fault.k)

    def measure(self) -> None:
        """Note the memory of every process that lives for more than a message."""
        homes = {"superlink", *(f"supernode-{k}" for k in range(CLIENTS))}
        for pid in {pid for home in homes for pid in processes(self.run.home(home), "")}:
            name = name_of(pid)
            name = "python" if name.startswith("python") else name
            if name in PARTS and (size := anonymous(pid)):
                self._lives.setdefault((PARTS[name], pid), []).append(size)

    def memory(self, least: int) -> dict[str, Any]:
        """Return by part the MB of its process that grew most, after a quarter and at the end."""
        found: dict[str, Any] = {}
        for (part, _), sizes in self._lives.items():
            if len(sizes) < least:
                continue
            few = len(sizes) // 4
            early, late = (round(median(s) / 1e6, 1) for s in (sizes[few : 2 * few], sizes[-few:]))
            past = found.get(part, {"processes": 0, "early": 0.0, "late": 0.0})
            count = past["processes"] + 1
            if late - early >= past["late"] - past["early"] or count == 1:
                past = {"rounds": len(sizes), "early": early, "late": late}
            found[part] = {**past, "processes": count}
        return found


def send(pids: set[int], number: signal.Signals) -> None:
    """Send a signal to these processes; some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def federation(folder: Path, rounds: int, mode: str, *, hosts: bool) -> Iterator[Soak]:
    """A federation of ``CLIENTS`` clients; the run begins with some of them."""
    with contextlib.ExitStack() as stack:
        server, clients = None, list[Host]()
        if hosts:
            network = stack.enter_context(namespaces.Network())
            server = network.host("server")
            clients = [network.host(f"client{k}") for k in range(CLIENTS)]
        changes: dict[str, Any] = {**RUN[mode], **ELASTIC, "rounds": rounds}
        run = Machines(folder, server, clients, size=CLIENTS, later=LATER, warm=True, **changes)
        yield Soak(stack.enter_context(run), clients)


def soak(folder: Path, rounds: int, seed: int, mode: str) -> Recorded:
    """Play and replay the run; raise ``AssertionError`` if it lost anything."""
    hosts = not namespaces.allowed()
    faults = schedule(rounds, seed, KINDS if hosts else KINDS[:-1])
    begun = time.monotonic()
    with federation(folder, rounds, mode, hosts=hosts) as running:
        for t in range(1, rounds):
            running.run.await_round(t)
            running.measure()
            for fault in faults:
                if fault.end == t:
                    running.end(fault)
                if fault.t == t:
                    what = f"{fault.kind} until {fault.end}"
                    print(f"round {t}: client {fault.k}: {what}", flush=True)
                    running.begin(fault)
        real = running.run.end()
        seconds, memory = time.monotonic() - begun, running.memory(LIVED[mode])
    replay = {"rounds": rounds, "membership": str(folder / "out" / "journal.jsonl")}
    replayed = play(settings(folder / "replay", clients=CLIENTS, **RUN[mode], **replay))
    changes = Counter(event["kind"] for entry in real.journal for event in entry.get("events", []))
    asked, replied = requests(real)
    recorded = {
        **{"rounds": rounds, "seed": seed, "seconds": round(seconds), "namespaces": hosts},
        "faults": dict(Counter(fault.kind for fault in faults)),
        "events": dict(changes),
        **{"selected": asked, "replied": replied, "memory": memory},
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(recorded, indent=1), flush=True)
    check(real, replayed, rounds, memory)
    return recorded


def requests(run: TinyRun) -> tuple[int, int]:
    """Return how many clients were asked to train, and how many valid replies came."""
    kinds = [job[0] for e in run.journal for job in e.get("buffer", {}).get("events", [])]
    if kinds:
        return kinds.count("sent"), kinds.count("arrived")
    selected, replied = (
        sum(len(entry.get(what, [])) for entry in run.journal) for what in ("selected", "replied")
    )
    return selected, replied


def check(real: TinyRun, replayed: TinyRun, rounds: int, memory: dict[str, Any]) -> None:
    """Raise ``AssertionError`` if a round or a state is lost, bits differ or memory grows."""
    assert [entry["round"] for entry in real.journal] == list(range(rounds + 1))
    kinds = {event["kind"] for entry in real.journal for event in entry.get("events", [])}
    assert "replaced" not in kinds, "a client has lost its state"
    for mine, other in zip(real.timeless, replayed.timeless, strict=True):
        for key in ("round", "replied", "accuracy", "loss"):
            assert mine.get(key) == other.get(key), (mine["round"], key)
    assert real.weights == replayed.weights
    times, more = FLAT
    grown = {part: one for part, one in memory.items() if one["late"] > times * one["early"] + more}
    assert not grown, grown


def table(recorded: Recorded) -> Table:
    """The memory of the process of each part that grew most."""
    rows = [
        [part, *(str(one[key]) for key in ("processes", "rounds", "early", "late"))]
        for part, one in sorted(recorded["memory"].items())
    ]
    counted = {
        what: ", ".join(f"{n} {kind}" for kind, n in sorted(recorded[what].items()))
        for what in ("faults", "events")
    }
    note = (
        f"{recorded['rounds']} rounds, seed {recorded['seed']}, {recorded['seconds']} s, "
        f"{'network namespaces' if recorded['namespaces'] else 'one network'}. Faults: "
        f"{counted['faults']}. Events: {counted['events']}. {recorded['replied']} of "
        f"{recorded['selected']} requests had a valid reply."
    )
    head = ["process", "processes", "rounds", "MB after a quarter", "MB at the end"]
    return Table(head, rows, notes=[note])


def _recorded(mode: str) -> Table:
    return table(read(RECORDED[mode]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults")
    parser.add_argument("--out", type=Path, help="folder of the run; default: a temporary one")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    given = parser.parse_args()
    if given.rounds < LEAST:
        parser.error(f"--rounds {given.rounds} is not allowed; it should be at least {LEAST}")
    if not given.table:
        with contextlib.ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="soak-")
            place = given.out or Path(stack.enter_context(folder))
            recorded = soak(place.resolve(), given.rounds, given.seed, given.mode)
        write(RECORDED[given.mode], recorded)
    page = PAGE.read_text(encoding="utf-8")
    made = {mode: partial(_recorded, mode) for mode in MODES}
    PAGE.write_text(filled(page, made), encoding="utf-8")


if __name__ == "__main__":
    main()
