"""The public (proxy) set: unlabelled images that everybody may see, set apart from the clients'.

Partitions act on what remains, the pool.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from common.config import Data
from common.data import load
from common.data.dataset import Dataset
from common.seeds import rng


class Divided(NamedTuple):
    """A data set as a federation with a public set sees it."""

    pool: Dataset  #: what the clients' shares are cut from; the whole data set without a public set
    public: Tensor | None  #: images (M, C, H, W), the same in the same order everywhere
    labels: Tensor | None  #: true classes (M,), for the labelled upper bound; None if unknown


def divide(data: Data, seed: int) -> Divided:
    """The pool and the public set as ``data`` says: ``public-dir``, else a ``public`` share.

    The images of ``public-dir``, read as ``data.name`` is read, are public as a whole: for clients
    whose own data no common seed could divide. Raises ``ValueError`` if they have another shape.
    """
    dataset = load(data)
    if data.public_dir:
        away = {"dir": data.public_dir, "samples": 0, "test_samples": 0}
        other = load(data.model_copy(update=away))
        if other.shape != dataset.shape:
            raise ValueError(
                f"data.public-dir = {data.public_dir!r} has images {other.shape}, "
                f"the data set {dataset.shape}"
            )
        return Divided(dataset, other.x, other.y)
    if data.public == 0:
        return Divided(dataset, None, None)
    return set_aside(dataset, data.public, seed)


@lru_cache(maxsize=4)
def set_aside(dataset: Dataset, fraction: float, seed: int) -> Divided:
    """A random ``fraction`` of the training set loses its labels.

    Drawn from the stream "public" of ``seed``; public images are uint8 (M, C, H, W) with
    M = round(fraction · N), in the order of the training set. A data set that brings its own
    public images (``x_public``) keeps its whole training set as the pool, and ``fraction`` is of
    those images instead. DL-MH takes 0.8 of the training set.
    """
    whole = dataset.x if dataset.x_public is None else dataset.x_public
    labels = dataset.y if dataset.x_public is None else dataset.y_public
    n = round(fraction * len(whole))
    room = len(whole) - (1 if dataset.x_public is None else 0)
    if not 1 <= n <= room:
        raise ValueError(
            f"a public set of {fraction} of {len(whole)} images has {n}: 1 to {room} are possible"
        )
    order = torch.from_numpy(rng(seed, "public").permutation(len(whole)))
    public, rest = order[:n].sort().values, order[n:].sort().values
    known = None if labels is None else labels[public]
    if dataset.x_public is not None:
        return Divided(dataset, whole[public], known)
    pool = replace(dataset, x=dataset.x[rest], y=dataset.y[rest])
    return Divided(pool, whole[public], known)
