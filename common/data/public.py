"""The public (proxy) set: unlabelled images that everybody may see, set apart from the clients'.

Partitions act on what remains, the pool.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from common.data.dataset import Dataset
from common.seeds import rng


def set_aside(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Tensor]:
    """(pool, public images): a random ``fraction`` of the training set loses its labels.

    Drawn from the stream "public" of ``seed``; public images are uint8 (M, C, H, W) with
    M = round(fraction · N), in the order of the training set. A data set that brings its own
    public images (``x_public``) keeps its whole training set as the pool, and ``fraction`` is of
    those images instead. DL-MH takes 0.8 of the training set.
    """
    whole = dataset.x if dataset.x_public is None else dataset.x_public
    n = round(fraction * len(whole))
    room = len(whole) - (1 if dataset.x_public is None else 0)
    if not 1 <= n <= room:
        raise ValueError(
            f"a public set of {fraction} of {len(whole)} images has {n}: 1 to {room} are possible"
        )
    order = torch.from_numpy(rng(seed, "public").permutation(len(whole)))
    public, rest = order[:n].sort().values, order[n:].sort().values
    if dataset.x_public is not None:
        return dataset, whole[public]
    return replace(dataset, x=dataset.x[rest], y=dataset.y[rest]), whole[public]
