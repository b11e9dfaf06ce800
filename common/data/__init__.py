"""Data: what there is to learn, how it falls to the clients, and the batches they train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import torch

from common.config import Data
from common.data.colour import CIFAR10, CIFAR100, SVHN
from common.data.dataset import Dataset, resize, stratified
from common.data.embedded import digits, points, toy
from common.data.folder import load_folder
from common.data.idx import EMNIST_LETTERS, FASHION_MNIST, MNIST
from common.data.partition import OWN, PARTITIONS
from common.seeds import rng

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "Source", "load"]


@final
@dataclass(frozen=True)
class Source:
    """Where a data set comes from; ``shape`` (C, H, W) and ``classes`` are None if it varies."""

    load: Callable[[Data], Dataset]
    description: str
    shape: tuple[int, int, int] | None
    classes: int | None


DATASETS: dict[str, Source] = {
    "digits": Source(lambda _: digits(), "handwritten digits, inside scikit-learn", (1, 8, 8), 10),
    "fashion-mnist": Source(
        FASHION_MNIST.load,
        "clothing (Xiao et al. 2017); Debian package or torchvision",
        (1, 28, 28),
        10,
    ),
    "mnist": Source(MNIST.load, "digits (LeCun et al. 1998); torchvision", (1, 28, 28), 10),
    "emnist-letters": Source(
        EMNIST_LETTERS.load, "letters (Cohen et al. 2017); torchvision", (1, 28, 28), 26
    ),
    "cifar10": Source(CIFAR10.load, "CIFAR-10 (Krizhevsky 2009); torchvision", (3, 32, 32), 10),
    "cifar100": Source(
        CIFAR100.load, "CIFAR-100, fine labels (Krizhevsky 2009); torchvision", (3, 32, 32), 100
    ),
    "svhn": Source(SVHN.load, "house numbers (Netzer et al. 2011); torchvision", (3, 32, 32), 10),
    "folder": Source(load_folder, "images in data.dir, one folder per class", None, None),
    "toy": Source(lambda _: toy(), "random patterns with noise, made on the spot", (1, 8, 8), 3),
    "points": Source(lambda _: points(), "three spiral arms in the plane", (2, 1, 1), 3),
}

_DECIDE = {"name", "dir", "download", "image_size", "samples", "test_samples", "seed"}
"""What decides which samples there are, beside whether they are one client's own."""


def load(data: Data) -> Dataset:
    """The data set ``data.name``, cut and resized as the options say.

    ``data.samples`` and ``data.test_samples`` (0: all) take class-stratified subsets, drawn from
    the streams "samples" and "test-samples" of ``data.seed``. ``data.image_size`` (0: as is)
    resizes to a square once, bilinearly. Mean and standard deviation stay those of the full
    training set. Tensors are shared between callers and must not be changed in place.
    """
    decides = data.model_dump(include=_DECIDE)
    return _load(Data(**decides, partition=OWN if data.partition == OWN else "iid"))


@lru_cache(maxsize=4)
def _load(data: Data) -> Dataset:
    source = DATASETS.get(data.name)
    if source is None:
        raise ValueError(f"unknown data.name {data.name!r}: choose from {', '.join(DATASETS)}")
    dataset = source.load(data)
    _check(dataset, every_class=data.partition != OWN)
    if data.samples:
        rows = stratified(dataset.y, data.samples, rng(data.seed, "samples"))
        dataset = replace(dataset, x=dataset.x[rows], y=dataset.y[rows])
    if data.test_samples:
        rows = stratified(dataset.y_test, data.test_samples, rng(data.seed, "test-samples"))
        dataset = replace(dataset, x_test=dataset.x_test[rows], y_test=dataset.y_test[rows])
    if data.image_size:
        public = dataset.x_public
        dataset = replace(
            dataset,
            x=resize(dataset.x, data.image_size),
            x_test=resize(dataset.x_test, data.image_size),
            x_public=None if public is None else resize(public, data.image_size),
        )
    return dataset


def _check(dataset: Dataset, *, every_class: bool) -> None:
    """Refuse a data set that cannot be learnt from; the loaders' own promises are asserted.

    ``every_class``: it is all there is, so each class needs samples; a client's own need not have
    them.
    """
    counts = torch.bincount(dataset.y, minlength=dataset.num_classes)
    for name, count in zip(dataset.classes, counts.tolist(), strict=True):
        if count == 0 and every_class:
            raise ValueError(f"data set {dataset.name!r}: class {name!r} has no samples")
    if not len(dataset.y_test):
        raise ValueError(f"data set {dataset.name!r} has no test samples")
    assert dataset.x.dtype in (torch.uint8, torch.float32) and dataset.x.ndim == 4
    assert dataset.y.dtype == dataset.y_test.dtype == torch.int64
    assert len(dataset.x) == len(dataset.y) and len(dataset.x_test) == len(dataset.y_test)
    assert dataset.x.shape[1:] == dataset.x_test.shape[1:]
    assert len(dataset.mean) == len(dataset.std) == dataset.x.shape[1]
