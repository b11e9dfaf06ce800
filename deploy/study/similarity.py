"""How alike networks see the same images, stage by stage, in numbers and pictures (FedIN, 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from common.cka import centred_gram, pairwise
from common.data.dataset import Dataset
from common.models.classifier import Split
from common.task import Task
from deploy.report.style import frame, frames, series, style


@final
@dataclass(frozen=True)
class Map:
    """Features of one class, three architectures, on a plane (Figure 7)."""

    stage: str
    class_name: str
    points: dict[str, list[list[float]]]
    """Two coordinates for each image, by architecture."""
    separation: float
    """Silhouette of the architectures in feature space, −1 to 1: 0 mixed, 1 apart."""


@torch.no_grad()
def features(net: Split, x: Tensor, task: Task) -> dict[str, Tensor]:
    """The outputs [n, c, h, w] of every stage for images x, on the CPU, in eval mode.

    The network is on the task's device.
    """
    kept: dict[str, list[Tensor]] = {name.rstrip("."): [] for name in net.intermediate_prefixes}

    def listen(stage: str, module: Module, given: object, output: Tensor) -> None:
        kept[stage].append(output.float().cpu())

    with ExitStack() as hooks:
        for stage in kept:
            hook = net.get_submodule(stage).register_forward_hook(partial(listen, stage))
            hooks.callback(hook.remove)
        for images, _ in task.in_order(x):
            net(images)
    return {stage: torch.cat(parts) for stage, parts in kept.items()}


def similarity(nets: Sequence[Split], x: Tensor, task: Task) -> dict[str, Tensor]:
    """Linear CKA of every pair of networks [m, m] on images x, by stage."""
    grams: dict[str, list[Tensor]] = {}
    for net in nets:
        for stage, output in features(net, x, task).items():
            grams.setdefault(stage, []).append(centred_gram(output))
    return {stage: pairwise(found) for stage, found in grams.items()}


def mean_pair(matrix: Tensor) -> float:
    """The mean over all pairs of two different networks."""
    m = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (m * (m - 1)))


def class_map(nets: dict[str, Split], label: int, dataset: Dataset, task: Task, images: int) -> Map:
    """t-SNE of up to ``images`` test images of one class in the third stage (or the last).

    ``nets``: up to three networks of different architectures, by name.
    """
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    x = dataset.x_test[dataset.y_test == label][:images]
    if len(x) < 3:
        raise ValueError(f"class {label} has {len(x)} test images; t-SNE takes 3 or more")
    names = list(nets)
    seen = [features(net, x, task) for net in nets.values()]
    stage = list(seen[0])[:3][-1]
    stacked = np.concatenate([found[stage].flatten(1).numpy() for found in seen])
    near = min(30.0, (len(stacked) - 1) / 3)
    plane = TSNE(perplexity=near, init="pca", random_state=task.seed)  # type: ignore[no-untyped-call]
    points = plane.fit_transform(stacked).reshape(len(names), len(x), 2)
    owners = np.repeat(np.arange(len(names)), len(x))
    apart = float(silhouette_score(stacked, owners)) if len(names) > 1 else 0.0
    by_name = dict(zip(names, points.tolist(), strict=True))
    return Map(stage, dataset.classes[label], by_name, apart)


@style()
def bars(means: Mapping[str, Mapping[str, float]]) -> Figure:
    """Mean CKA of two clients by stage, one bar for each run (Figure 5).

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
    """CKA of every pair of clients, one map for each stage (Figure 6).

    ``matrices``: [m, m] by stage; ``labels``: of the m clients.
    """
    figure, ((*every,),) = frames((3.3 * len(matrices) + 0.8, 3.4), 1, len(matrices))
    for axes, (stage, matrix) in zip(every, matrices.items(), strict=True):
        image = axes.imshow(matrix.numpy(), vmin=0, vmax=1, cmap="viridis")
        axes.grid(visible=False)
        axes.set_title(stage, fontsize=9.5)
        axes.set_xticks(range(len(labels)), [label.partition(" ")[0] for label in labels])
        axes.set_yticks(range(len(labels)), [""] * len(labels))
    every[0].set_yticks(range(len(labels)), labels)
    figure.colorbar(image, ax=every, shrink=0.8)
    return figure


@style(ticks=False)
def plane(found: Map) -> Figure:
    """One class's features, a colour for each architecture (Figure 7)."""
    figure, axes = frame((4.4, 3.9))
    for i, (name, points) in enumerate(found.points.items()):
        x, y = np.asarray(points).T
        axes.plot(x, y, "o", color=series(i), markersize=4, alpha=0.7, label=name)
    axes.set_title(f"{found.class_name}, {found.stage}", fontsize=9.5)
    figure.legend(loc="outside lower center", ncols=len(found.points))
    return figure
