"""How alike networks see the same images, stage by stage (FedIN, section 5.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from common.cka import centred_gram, pairwise
from common.config import Config
from common.data.batches import evaluation_batches
from common.data.dataset import Dataset
from common.models.classifier import Split


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


def stages(net: Split) -> list[str]:
    """Names of the intermediate layers' stages, such as ``layer1``."""
    return [prefix.rstrip(".") for prefix in net.intermediate_prefixes]


@torch.no_grad()
def features(net: Split, x: Tensor, dataset: Dataset, config: Config) -> dict[str, Tensor]:
    """The outputs [n, c, h, w] of every stage for images x, on the CPU, in eval mode."""
    kept: dict[str, list[Tensor]] = {stage: [] for stage in stages(net)}
    device = next(net.parameters()).device
    batches = evaluation_batches(
        x,
        torch.zeros(len(x), dtype=torch.int64),
        batch_size=config.score.batch_size,
        mean=dataset.mean,
        std=dataset.std,
        standardize=config.data.standardize,
        device=device,
    )
    with _listening(net, kept):
        for images, _ in batches:
            net(images)
    return {stage: torch.cat(parts) for stage, parts in kept.items()}


@contextmanager
def _listening(net: Split, kept: dict[str, list[Tensor]]) -> Iterator[None]:
    def listener(stage: str) -> Any:
        return lambda module, given, output: kept[stage].append(output.float().cpu())

    hooks = [net.get_submodule(s).register_forward_hook(listener(s)) for s in kept]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def similarity(
    nets: Sequence[Split], x: Tensor, dataset: Dataset, config: Config
) -> dict[str, Tensor]:
    """Linear CKA of every pair of networks [m, m] on images x, by stage."""
    grams: dict[str, list[Tensor]] = {}
    for net in nets:
        for stage, output in features(net, x, dataset, config).items():
            grams.setdefault(stage, []).append(centred_gram(output))
    return {stage: pairwise(found) for stage, found in grams.items()}


def mean_pair(matrix: Tensor) -> float:
    """The mean over all pairs of two different networks."""
    m = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (m * (m - 1)))


def class_map(
    nets: dict[str, Split], label: int, dataset: Dataset, config: Config, images: int
) -> Map:
    """t-SNE of up to ``images`` test images of one class in the third stage (or the last).

    ``nets``: up to three networks of different architectures, by name.
    """
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    x = dataset.x_test[dataset.y_test == label][:images]
    if len(x) < 3:
        raise ValueError(f"class {label} has {len(x)} test images; t-SNE takes 3 or more")
    names = list(nets)
    stage = stages(nets[names[0]])[:3][-1]
    parts = [features(net, x, dataset, config)[stage].flatten(1).numpy() for net in nets.values()]
    stacked = np.concatenate(parts)
    perplexity = min(30.0, (len(stacked) - 1) / 3)
    plane = TSNE(  # type: ignore[no-untyped-call]
        perplexity=perplexity, init="pca", random_state=config.run.seed
    )
    points = plane.fit_transform(stacked).reshape(len(names), len(x), 2)
    owners = np.repeat(np.arange(len(names)), len(x))
    apart = float(silhouette_score(stacked, owners)) if len(names) > 1 else 0.0
    found = {name: points[i].tolist() for i, name in enumerate(names)}
    return Map(stage, dataset.classes[label], found, apart)
