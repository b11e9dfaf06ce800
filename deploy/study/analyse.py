"""Analyse finished runs: similarity of the clients' features, and the cost of a client's round.

The cost is the numbers sent and the memory to train (FedIN, Table VI).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import final

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from common.data.dataset import Dataset
from common.exchange import tree
from common.exchange.protocol import Reply
from common.exchange.records import Records, tensors
from common.files import write_all
from common.models import count
from common.models.classifier import Split
from common.settings.section import Value
from common.techniques.cka import centred_gram, pairwise
from common.training.costs import following
from common.training.task import Task
from deploy.report.groups import grouped, mean_with_interval
from deploy.report.read import read
from deploy.report.style import frame, frames, save, series, style
from deploy.report.table import NONE, Table, clean, markdown
from deploy.run.loopback import Loopback
from deploy.study.finished import CHECKPOINT, Further, finished, further_round
from server_app.messaging.exchange import exchange
from server_app.method import Client

NOTE = (
    "mean CKA of two clients by stage; apart: silhouette of the architectures in one class; "
    "parameters and further numbers a client sends in a round; memory to train"
)
INTERVAL = "mean of the seeds ± half of its 95 % interval (Student's t)"
CLASS_IMAGES = 100  #: most images of one class for each architecture in the t-SNE
STEPS = 2  #: training steps during which the memory is measured


@final
@dataclass(frozen=True)
class Overheads:
    """Means over the clients of one round; counts of floating-point numbers, in one direction."""

    parameters: float
    buffers: float
    further_up: float
    """Numbers sent to the server beside weights and buffers, such as features."""
    further_down: float
    memory_mb: float
    """Peak memory of tensors while a client trains, in 10⁶ bytes."""


@final
@dataclass(frozen=True)
class Analysis:
    """The results of one run: CKA in [0, 1] by stage, the mean and the matrix of pairs [m][m]."""

    method: str
    clients: list[str]
    cka: dict[str, float]
    cka_pairs: dict[str, list[list[float]]]
    tsne: Map | None
    """None if the architectures' features have different widths."""
    overheads: Overheads


def analyse(
    folders: list[Path], to: Path, clients: int, images: int, label: int, workers: int
) -> tuple[list[Path], Table, dict[str, object]]:
    """Analyse each run; return the files written under ``to``, a table, and all numbers by run.

    Runs that differ only in the seed are one row of the table, mean ± half of the 95 % interval,
    and one bar of the figure. The analysis uses the first ``clients`` ≥ 2 clients, the first
    ``images`` ≥ 2 test images, and class ``label`` for the t-SNE.

    Raises ``ValueError``, one line, for a run that cannot be analysed.
    """
    if clients < 2 or images < 2:
        options = f"--clients {clients} --images {images}"
        raise ValueError(f"{options} is not allowed; an analysis takes 2 or more of each")
    names = [folder.resolve().name for folder in folders]
    names = [f"{n}-{i}" if names.count(n) > 1 else n for i, n in enumerate(names, 1)]
    analyses: dict[str, Analysis] = {}
    written: list[Path] = []
    for name, folder in zip(names, folders, strict=True):
        finished(folder, CHECKPOINT).dataset_of_classes()
        with further_round(folder, clients, workers) as further:
            analyses[name], pictures = _one(further, images, label)
        written += [save(figure, to / f"{name}-{kind}.png") for kind, figure in pictures.items()]
    runs = [read(folder) for folder in folders]
    by_run = dict(zip(map(id, runs), analyses.values(), strict=True))
    groups = {group.label: [by_run[id(run)] for run in group.runs] for group in grouped(runs)}
    means = {name: _mean([one.cka for one in group]) for name, group in groups.items()}
    written.append(save(bars(means), to / "cka.png"))
    table, results = _table(groups), {name: asdict(one) for name, one in analyses.items()}
    texts = {"analysis.json": f"{json.dumps(results, indent=1)}\n", "analysis.md": markdown(table)}
    return [*written, *write_all(to, texts)], table, dict(results)


def _one(further: Further, images: int, label: int) -> tuple[Analysis, dict[str, Figure]]:
    data, task = further.dataset, further.method.task
    networks = further.networks()
    if len(networks) < 2:
        raise ValueError(f"the run has {len(networks)} client; CKA compares 2 or more")
    if not 0 <= label < data.num_classes:
        raise ValueError(f"class {label}: the data set has 0 to {data.num_classes - 1}")
    matrices = similarity([net for _, net in networks], data.x_test[:images], task)
    tsne = class_map(_three(networks), label, data, task, CLASS_IMAGES)
    names = [f"{client.k} {client.architecture}" for client, _ in networks]
    means = {stage: mean_pair(matrix) for stage, matrix in matrices.items()}
    pairs = {stage: matrix.tolist() for stage, matrix in matrices.items()}
    result = Analysis(task.config.run.method, names, means, pairs, tsne, overheads(further))
    pictures = {"cka": heat_maps(matrices, names)}
    return result, pictures if tsne is None else {**pictures, "tsne": plane(tsne)}


def _three(networks: list[tuple[Client, Split]]) -> dict[str, Split]:
    """Return the smallest, a middle and the largest architecture: name -> a client's network."""
    firsts = {client.architecture: net for client, net in reversed(networks)}
    ordered = sorted(firsts, key=lambda spec: (count(firsts[spec]), spec))
    chosen = dict.fromkeys([ordered[0], ordered[len(ordered) // 2], ordered[-1]])
    return {spec: firsts[spec] for spec in chosen}


def _mean(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in numbers) for name in numbers[0]}


def _table(groups: Mapping[str, Sequence[Analysis]]) -> Table:
    stages = list(dict.fromkeys(s for group in groups.values() for one in group for s in one.cka))
    rows = []
    for label, group in groups.items():
        cka = ([one.cka.get(stage, math.nan) for one in group] for stage in stages)
        apart = _cell([one.tsne.separation if one.tsne else math.nan for one in group])
        cost = Overheads(**_mean([asdict(one.overheads) for one in group]))
        sent = (f"{cost.parameters / 1e6:.2f} M", f"{cost.further_up:,.0f}")
        rows.append((clean(label), *map(_cell, cka), apart, *sent, f"{cost.memory_mb:.1f} MB"))
    header = ("run", *stages, "apart", "parameters", "more up", "memory")
    several = any(len(group) > 1 for group in groups.values())
    return Table(header, rows, notes=(NOTE, INTERVAL) if several else (NOTE,))


def _cell(values: Sequence[float]) -> str:
    return mean_with_interval(values, ".3f") if all(map(math.isfinite, values)) else NONE


def overheads(further: Further) -> Overheads:
    """Count the numbers sent in the further round, and train again to measure the memory."""
    counts = [_counts(further, client, reply) for client, reply in further.replies]
    firsts = {client.architecture: client.k for client, _ in reversed(further.replies)}
    memory = [_memory(further, k) for k in firsts.values()]
    means = {name: fmean(count[name] for count in counts) for name in counts[0]}
    return Overheads(memory_mb=fmean(memory) / 1e6, **means)


def _counts(further: Further, client: Client, reply: Reply) -> dict[str, int]:
    """Return counts of the floating-point numbers that one client exchanges in a round."""
    net = further.method.build(client.architecture)
    named = tree.parameters_only(net)
    state = {k: v for k, v in net.state_dict().items() if v.is_floating_point()}
    parameters = sum(v.numel() for k, v in state.items() if k in named)
    weights = sum(v.numel() for v in state.values())
    request = further.method.requests(reply.t)
    sent = request(client) if callable(request) else request
    return {
        "parameters": parameters,
        "buffers": weights - parameters,
        "further_up": _numbers(reply) - weights,
        "further_down": _numbers(sent) - weights,
    }


def _numbers(payload: Records) -> int:
    return sum(t.numel() for _, t in tensors(payload) if t.is_floating_point())


def _memory(further: Further, k: int) -> int:
    """Return the peak bytes of tensors while client k trains ``STEPS`` steps in this process."""
    flat: dict[str, Value] = {**further.flat, "train.steps": STEPS}
    message, run = further.messages[k], further.method.config.run

    def train() -> None:
        with Loopback(run.clients, flat, workers=0) as grid:
            exchange(grid, {k: message}, run.timeout, 0)

    train()  # fills the caches and loads data sets, which are not measured
    with following(True) as peak:
        train()
    return peak.most


@final
@dataclass(frozen=True)
class Map:
    """Features of one class from three architectures, mapped to a plane (Figure 7)."""

    stage: str
    class_name: str
    points: dict[str, list[list[float]]]
    """Two coordinates for each image, by architecture."""
    separation: float
    """Silhouette of the architectures in feature space, −1 to 1: 0 mixed, 1 separate."""


@torch.no_grad()
def features(net: Split, x: Tensor, task: Task) -> dict[str, Tensor]:
    """Return the outputs [n, c, ...] of every stage for samples x, on the CPU.

    The network is in eval mode and on the task's device.
    """
    outputs: dict[str, list[Tensor]] = {name.rstrip("."): [] for name in net.intermediate_prefixes}

    def collect(stage: str, module: Module, inputs: object, output: Tensor) -> None:
        outputs[stage].append(output.float().cpu())

    with ExitStack() as hooks:
        for stage in outputs:
            hook = net.get_submodule(stage).register_forward_hook(partial(collect, stage))
            hooks.callback(hook.remove)
        for images, _ in task.in_order(x):
            net.features(images)  # not net(images): a network below a projection has no head
    return {stage: torch.cat(pieces) for stage, pieces in outputs.items()}


def similarity(nets: Sequence[Split], x: Tensor, task: Task) -> dict[str, Tensor]:
    """Return the linear CKA of every pair of networks [m, m] on images x, by stage."""
    grams: dict[str, list[Tensor]] = {}
    for net in nets:
        for stage, output in features(net, x, task).items():
            grams.setdefault(stage, []).append(centred_gram(output))
    return {stage: pairwise(matrices) for stage, matrices in grams.items()}


def mean_pair(matrix: Tensor) -> float:
    """Return the mean over all pairs of two different networks of a matrix [m, m]."""
    m = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (m * (m - 1)))


def class_map(
    nets: dict[str, Split], label: int, dataset: Dataset, task: Task, images: int
) -> Map | None:
    """Return the t-SNE of up to ``images`` test images of one class, of the third (or last) stage.

    None if the features have different shapes, because such spaces cannot be compared.

    ``nets``: up to three networks of different architectures, by name.
    """
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    x = dataset.x_test[dataset.y_test == label][:images]
    if len(x) < 3:
        raise ValueError(f"class {label} has {len(x)} test images; t-SNE takes 3 or more")
    names = list(nets)
    outputs = [features(net, x, task) for net in nets.values()]
    stage = list(outputs[0])[:3][-1]
    if len({by_stage[stage].shape for by_stage in outputs}) > 1:
        return None
    stacked = np.concatenate([by_stage[stage].flatten(1).numpy() for by_stage in outputs])
    near = min(30.0, (len(stacked) - 1) / 3)
    plane = TSNE(perplexity=near, init="pca", random_state=task.seed)  # type: ignore[no-untyped-call]
    points = plane.fit_transform(stacked).reshape(len(names), len(x), 2)
    owners = np.repeat(np.arange(len(names)), len(x))
    apart = float(silhouette_score(stacked, owners)) if len(names) > 1 else 0.0
    by_name = dict(zip(names, points.tolist(), strict=True))
    return Map(stage, dataset.classes[label], by_name, apart)


@style()
def bars(means: Mapping[str, Mapping[str, float]]) -> Figure:
    """Plot the mean CKA of two clients by stage, one bar for each run (Figure 5).

    ``means``: by run, by stage.
    """
    figure, axes = frame((6.2, 3.1))
    names = list(dict.fromkeys(stage for stages in means.values() for stage in stages))
    width = 0.8 / len(means)
    for i, (label, stages) in enumerate(means.items()):
        at = np.arange(len(names)) + (i - (len(means) - 1) / 2) * width
        heights = [stages.get(name, np.nan) for name in names]
        axes.bar(at, heights, 0.92 * width, color=series(i), label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 1)
    axes.set_ylabel("CKA, mean over pairs of clients")
    figure.legend(loc="outside upper center", ncols=min(len(means), 3))
    return figure


@style()
def heat_maps(matrices: Mapping[str, Tensor], labels: Sequence[str]) -> Figure:
    """Plot the CKA of every pair of clients, one map for each stage (Figure 6).

    ``matrices``: [m, m] by stage; ``labels``: names of the m clients.
    """
    figure, ((*panels,),) = frames((3.3 * len(matrices) + 0.8, 3.4), 1, len(matrices))
    for axes, (stage, matrix) in zip(panels, matrices.items(), strict=True):
        image = axes.imshow(matrix.numpy(), vmin=0, vmax=1, cmap="viridis")
        axes.grid(visible=False)
        axes.set_title(stage, fontsize=9.5)
        axes.set_xticks(range(len(labels)), [label.partition(" ")[0] for label in labels])
        axes.set_yticks(range(len(labels)), [""] * len(labels))
    panels[0].set_yticks(range(len(labels)), labels)
    figure.colorbar(image, ax=panels, shrink=0.8)
    return figure


@style(ticks=False)
def plane(tsne: Map) -> Figure:
    """Plot one class's features, a colour for each architecture (Figure 7)."""
    figure, axes = frame((4.4, 3.9))
    for i, (name, points) in enumerate(tsne.points.items()):
        x, y = np.asarray(points).T
        axes.plot(x, y, "o", color=series(i), markersize=4, alpha=0.7, label=name)
    axes.set_title(f"{tsne.class_name}, {tsne.stage}", fontsize=9.5)
    figure.legend(loc="outside lower center", ncols=len(tsne.points))
    return figure
