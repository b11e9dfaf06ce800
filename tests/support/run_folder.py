"""Run folders and journal entries written by hand, for tests without a run."""

import json
from pathlib import Path
from typing import Any

from common.journal import VERSION, Entry
from common.parse import defaults, to_toml

CONFIG = """
method = "{method}"
rounds = {rounds}
seed = {seed}
state-dir = "/somewhere/{seed}"
experiment = "named-{seed}"
[data]
name = "digits"
alpha = 0.5
"""

SCORES = [
    {"k": k, "n": 3, "accuracy": a, "accuracy_global": 0.5} for k, a in ((0, 0.25), (1, 0.75))
]


def census(
    model: str = "lenet5", classes: tuple[str, ...] = ("zero", "one"), **of_last: Any
) -> Entry:
    """Return the census of two clients, a resnet8 and a ``model`` with the fields ``of_last``."""
    common = {"n": 7, "parameters": 100, "counts": [3, 4]}
    clients = [
        {"k": 0, "model": "resnet8", **common},
        {"k": 1, "model": model, **common, **of_last},
    ]
    fields = {"round": 0, "clients": clients, "classes": list(classes), "accuracy": 0.1}
    fields |= {"loss": 2.3, "bytes": {"down": 10, "up": 20}, "seconds": {"total": 0.5}}
    return Entry.model_validate(fields)


def entry(t: int, accuracy: float | None, **more: Any) -> Entry:
    """Return the entry of round t ≥ 1, which took two seconds."""
    return Entry.model_validate(
        {
            **{"round": t, "accuracy": accuracy, "loss": 1.0 / t, "selected": [0, 1]},
            **{"replied": [0, 1], "bytes": {"down": 1000, "up": 500}},
            "seconds": {"clients": 1.0, "step": 0.5, "total": 2.0},
            **more,
        }
    )


def journal_line(text: str) -> str:
    """Return a journal line of the present version with ``text`` as the rest of its object."""
    return f'{{"version": {VERSION}, {text}}}\n'


def write_run(
    where: Path, entries: list[Entry], *, summary: Any = None, tail: str = "", **settings: Any
) -> Path:
    """Write the folder of a run; ``tail`` follows the journal's last line."""
    where.mkdir()
    lines = "".join(one.line() + "\n" for one in entries)
    (where / "journal.jsonl").write_text(lines + tail, encoding="utf-8")
    config = CONFIG.format(**{"method": "fedkf", "rounds": 2, "seed": 1, **settings})
    (where / "config.toml").write_text(config, encoding="utf-8")
    if summary is not None:
        (where / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return where


def finished(where: Path, **more: Any) -> Path:
    """Write the folder of a finished run of two rounds, after which both clients were scored."""
    entries = [census(), entry(1, 0.6), entry(2, 0.4, scores=SCORES)]
    return write_run(where, entries, **{"summary": {"status": "completed"}, **more})


def clocked(where: Path, rounds: int = 3, clients: int = 6, **settings: Any) -> Path:
    """Write the folder of a run with device profiles, whose clients have one job in each round.

    Client k takes 2 (k + 1) seconds, and half of it was measured. A round ends with the last but
    one reply: the last client is late. Client 1 has a profile of its own.
    """
    seconds = {k: 2.0 * (k + 1) for k in range(clients)}
    took = seconds[clients - 2]
    entries = [census()]
    for t in range(1, rounds + 1):
        clock = {"start": took * (t - 1), "end": took * t, "clients": seconds, "energy": 1500.0}
        clock |= {"late": [clients - 1], "jobs": {k: (4000, 2000, 4, 1000) for k in seconds}}
        more = {"measured": {k: spent / 2 for k, spent in seconds.items()}}
        more["client_metrics"] = {k: {"flops": 1e9} for k in range(clients - 1)}
        entries.append(entry(t, 1 - 0.8 / t, clock=clock, **more))
    return _on_clock(where, entries, clients, settings)


def buffered(where: Path, **settings: Any) -> Path:
    """Write the folder of a run of three asynchronous rounds: K = 2, three of four clients train.

    Clients 0 to 3 take 4, 6, 14 and 5 seconds. A client that is free longest gets the next job:
    0, 1 and 2 at 0 s, 3 at 4 s, 0 at 6 s, 1 at 9 s, 3 at 10 s, 0 at 14 s. The last two are in
    flight after the last step, and dropped.
    """
    took, steps = {0: 4.0, 1: 6.0, 2: 14.0, 3: 5.0}, [0.0, 6.0, 10.0, 15.0]
    sent = [[(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 1), (1, 1)], [(3, 2), (0, 2)]]
    arrived = [[(0, 0), (1, 0)], [(3, 0), (0, 1)], [(2, 0), (1, 1)]]
    times, dropped = [[4.0, 6.0], [9.0, 10.0], [14.0, 15.0]], [[], [], [0, 3]]
    entries = [census()]
    for t in (1, 2, 3):
        jobs = [*(k for k, _ in arrived[t - 1]), *dropped[t - 1]]
        clock = {"start": steps[t - 1], "end": steps[t], "late": dropped[t - 1]}
        clock |= {"clients": {k: took[k] for k in jobs}, "energy": 1500.0}
        events = [("sent", *job) for job in sent[t - 1]]
        events += [("arrived", *job) for job in arrived[t - 1]]
        buffer = {"events": events, "arrived": arrived[t - 1], "times": times[t - 1]}
        buffer |= {"staleness": [t - 1 - v for _, v in arrived[t - 1]], "in_flight": 2}
        unused = [{"k": k, "round": t, "reason": "the run has ended"} for k in dropped[t - 1]]
        more = {"selected": sorted({k for k, _ in sent[t - 1]}), "failures": unused}
        more["replied"] = sorted(k for k, _ in arrived[t - 1])
        entries.append(entry(t, 1 - 0.8 / t, clock=clock, buffer=buffer, **more))
    return _on_clock(where, entries, 4, {"mode": "buffered", "buffer.size": 2, **settings})


def _on_clock(where: Path, entries: list[Entry], clients: int, settings: dict[str, Any]) -> Path:
    """Write the folder of a finished run of fedavg with device profiles."""
    write_run(where, entries, summary={"status": "completed"})
    chosen = {"method": "fedavg", "rounds": entries[-1].round, "clients": clients}
    chosen |= {"data.name": "digits", "profiles": "phone-high,phone-low", "node.1.profile": "pi4"}
    chosen |= settings
    (where / "config.toml").write_text(to_toml({**defaults("fedavg"), **chosen}), encoding="utf-8")
    return where
