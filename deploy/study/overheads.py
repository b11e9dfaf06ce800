"""What a method costs a client in a round: numbers sent, and memory to train (FedIN, Table VI)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

import torch
from torch.profiler import ProfilerActivity, profile

from common import tree
from common.protocol import Up
from common.records import Records, tensors
from common.section import Value
from deploy.run.loopback import Loopback
from deploy.study.further_round import Further
from server_app.method import Client
from server_app.talk.exchange import exchange

STEPS = 2  #: training steps of which the memory is measured


@final
@dataclass(frozen=True)
class Overheads:
    """Means over the clients of one round; numbers are floating-point ones, one way."""

    parameters: float
    buffers: float
    further_up: float
    """Sent to the server beside weights and buffers, such as features."""
    further_down: float
    memory_mb: float
    """Most bytes (in 10⁶) that tensors took at once while a client trained."""


def overheads(further: Further) -> Overheads:
    """Count what travelled in the further round, and train once more to see the memory."""
    counts = [_counts(further, client, up) for client, up in further.ups]
    firsts = {client.model: client.k for client, _ in reversed(further.ups)}
    memory = [_memory(further, k) for k in firsts.values()]
    names = counts[0].keys()
    means = {name: fmean(count[name] for count in counts) for name in names}
    return Overheads(memory_mb=fmean(memory) / 1e6, **means)


def _counts(further: Further, client: Client, up: Up) -> dict[str, int]:
    """Floating-point numbers of one client's round."""
    net = further.method.build(client.model)
    named = tree.parameters_only(net)
    state = {k: v for k, v in net.state_dict().items() if v.is_floating_point()}
    parameters = sum(v.numel() for k, v in state.items() if k in named)
    weights = sum(v.numel() for v in state.values())
    down = further.method.down(up.t)
    sent = down(client) if callable(down) else down
    return {
        "parameters": parameters,
        "buffers": weights - parameters,
        "further_up": _numbers(up) - weights,
        "further_down": _numbers(sent) - weights,
    }


def _numbers(payload: Records) -> int:
    return sum(t.numel() for _, t in tensors(payload) if t.is_floating_point())


def _memory(further: Further, k: int) -> int:
    """Peak bytes of client k's training, in this process, a few steps long."""
    flat: dict[str, Value] = {**further.flat, "train.steps": STEPS}
    message, run = further.messages[k], further.method.config.run

    def train() -> None:
        with Loopback(run.clients, flat, workers=0) as grid:
            exchange(grid, {k: message}, run.timeout, 0)

    train()  # data sets and caches are there from now on
    return peak(train)


def peak(work: Callable[[], object]) -> int:
    """Most bytes that torch held at once during ``work``, above what it held before."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    recorded = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _quiet():
        recorded.start()
    try:
        work()
    finally:
        with _quiet():
            recorded.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    held = highest = 0
    changes = [e for e in trace["traceEvents"] if e.get("name") == "[memory]"]
    for event in sorted(changes, key=lambda e: (e["ts"], e["args"].get("Ev Idx", 0))):
        held += event["args"]["Bytes"]
        highest = max(highest, held)
    return int(highest)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the profiler's native code writes to standard error when it starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
