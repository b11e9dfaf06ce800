"""Analyse finished runs and write what was found.

What a method costs a client in a round: numbers sent, and memory to train (FedIN, Table VI).
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import final

import torch
from matplotlib.figure import Figure
from torch.profiler import ProfilerActivity, profile

from common import tree
from common.files import write_atomically
from common.models import count
from common.models.classifier import Split
from common.protocol import Up
from common.records import Records, tensors
from common.section import Value
from deploy.report.table import Table
from deploy.report.text import clean
from deploy.run.loopback import Loopback
from deploy.study.finished import Further, further_round
from deploy.study.similarity import Map, bars, class_map, heat_maps, mean_pair, plane, similarity
from server_app.method import Client
from server_app.talk.exchange import exchange

NOTE = (
    "mean CKA of two clients by stage; apart: silhouette of the architectures in one class; "
    "parameters and further numbers a client sends in a round; memory to train"
)
CLASS_IMAGES = 100  #: of one class and architecture in the t-SNE
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


@final
@dataclass(frozen=True)
class Analysis:
    """What was found in one run: CKA in [0, 1] by stage, the mean and of every pair [m][m]."""

    method: str
    clients: list[str]
    cka: dict[str, float]
    cka_pairs: dict[str, list[list[float]]]
    tsne: Map
    overheads: Overheads


def analyse(
    folders: list[Path], to: Path, *, clients: int, images: int, label: int, workers: int
) -> tuple[list[Path], Table]:
    """Analyse each run; the files written under ``to``, and the numbers as a table.

    The first ``clients`` clients and ``images`` test images, 2 or more; the t-SNE of class
    ``label``.

    Raises ``ValueError``, one line, for a run that cannot be analysed.
    """
    if clients < 2 or images < 2:
        raise ValueError("an analysis takes 2 or more clients and 2 or more images")
    to.mkdir(parents=True, exist_ok=True)
    names = [folder.resolve().name for folder in folders]
    names = [f"{n}-{i}" if names.count(n) > 1 else n for i, n in enumerate(names, 1)]
    found: dict[str, Analysis] = {}
    written: list[Path] = []
    for name, folder in zip(names, folders, strict=True):
        with further_round(folder, clients, workers) as further:
            found[name], pictures = _one(further, images, label)
        written += [_save(figure, to / f"{name}-{of}.png") for of, figure in pictures.items()]
    drawn = bars({name: one.cka for name, one in found.items()})
    written.append(_save(drawn, to / "cka.png"))
    path = to / "analysis.json"
    told = json.dumps({name: asdict(one) for name, one in found.items()}, indent=1)
    write_atomically(path, f"{told}\n".encode())
    return [*written, path], _table(found)


def _one(further: Further, images: int, label: int) -> tuple[Analysis, dict[str, Figure]]:
    data, task = further.dataset, further.method.task
    owned = further.networks()
    if len(owned) < 2:
        raise ValueError(f"the run has {len(owned)} client; CKA compares 2 or more")
    if not 0 <= label < data.num_classes:
        raise ValueError(f"class {label}: the data set has 0 to {data.num_classes - 1}")
    matrices = similarity([net for _, net in owned], data.x_test[:images], task)
    drawn = class_map(_three(owned), label, data, task, CLASS_IMAGES)
    names = [f"{client.k} {client.model}" for client, _ in owned]
    result = Analysis(
        method=task.config.run.method,
        clients=names,
        cka={stage: mean_pair(matrix) for stage, matrix in matrices.items()},
        cka_pairs={stage: matrix.tolist() for stage, matrix in matrices.items()},
        tsne=drawn,
        overheads=overheads(further),
    )
    return result, {"cka": heat_maps(matrices, names), "tsne": plane(drawn)}


def _three(owned: list[tuple[Client, Split]]) -> dict[str, Split]:
    """The smallest, a middle one and the largest architecture, each of its first client."""
    firsts = {client.model: net for client, net in reversed(owned)}
    ordered = sorted(firsts, key=lambda spec: (count(firsts[spec]), spec))
    chosen = dict.fromkeys([ordered[0], ordered[len(ordered) // 2], ordered[-1]])
    return {spec: firsts[spec] for spec in chosen}


def _save(figure: Figure, path: Path) -> Path:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    write_atomically(path, stream.getvalue())
    return path


def _table(found: Mapping[str, Analysis]) -> Table:
    stages = list(dict.fromkeys(stage for one in found.values() for stage in one.cka))
    rows = []
    for label, one in found.items():
        alike = (f"{one.cka.get(stage, float('nan')):.3f}" for stage in stages)
        cost, apart = one.overheads, f"{one.tsne.separation:.3f}"
        sent = (f"{cost.parameters / 1e6:.2f} M", f"{cost.further_up:,.0f}")
        rows.append((clean(label), *alike, apart, *sent, f"{cost.memory_mb:.1f} MB"))
    header = ("run", *stages, "apart", "parameters", "more up", "memory")
    return Table(header, rows, notes=(NOTE,))


def overheads(further: Further) -> Overheads:
    """Count what travelled in the further round, and train once more to see the memory."""
    counts = [_counts(further, client, up) for client, up in further.ups]
    firsts = {client.model: client.k for client, _ in reversed(further.ups)}
    memory = [_memory(further, k) for k in firsts.values()]
    means = {name: fmean(count[name] for count in counts) for name in counts[0]}
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
