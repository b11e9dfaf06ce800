"""Data: what there is to learn, how it falls to the clients, and the batches they train on.

A public (proxy) set is unlabelled images that everybody may see, set apart from the clients' or
those of another data set. Partitions act on what remains, the pool; ``shares.py`` says what each
client gets of it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from common.data import external
from common.data.arrays import load_leaf, load_npz
from common.data.dataset import Dataset, fitted, merged, resize, stratified
from common.data.embedded import digits, points, toy
from common.data.folder import load_client_folders, load_folder
from common.data.hub import load_hub
from common.data.partition import PARTITIONS
from common.data.published import (
    CIFAR10,
    CIFAR100,
    EMNIST_LETTERS,
    FASHION_MNIST,
    MNIST,
    SVHN,
)
from common.settings import plugins
from common.settings.config import NATURAL, OWN, SERVER, WHO, Data
from common.training.seeds import rng

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "Source", "load", "source"]


@final
@dataclass(frozen=True)
class Source:
    """Where a data set comes from; ``shape`` (C, H, W) and ``classes`` are None if it varies."""

    load: Callable[[Data], Dataset]
    description: str
    shape: tuple[int, int, int] | None = None
    classes: int | None = None


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
DATASETS: dict[str, Source] = {
    "digits": Source(lambda _: digits(), "handwritten digits, inside scikit-learn", (1, 8, 8), 10),
    "fashion-mnist": Source(
        FASHION_MNIST.load, "clothing (Xiao et al. 2017); Debian package or torchvision", GREY, 10
    ),
    "mnist": Source(MNIST.load, "digits (LeCun et al. 1998); torchvision", GREY, 10),
    "emnist-letters": Source(
        EMNIST_LETTERS.load, "letters (Cohen et al. 2017); torchvision", GREY, 26
    ),
    "cifar10": Source(CIFAR10.load, "CIFAR-10 (Krizhevsky 2009); torchvision", COLOUR, 10),
    "cifar100": Source(
        CIFAR100.load, "CIFAR-100, fine labels (Krizhevsky 2009); torchvision", COLOUR, 100
    ),
    "svhn": Source(SVHN.load, "house numbers (Netzer et al. 2011); torchvision", COLOUR, 10),
    "folder": Source(load_folder, "images in data.dir, one folder per class"),
    "client-folders": Source(
        load_client_folders, "images in data.dir, one folder per client with one folder per class"
    ),
    "npz": Source(load_npz, "clients' train/K.npz and test/K.npz in data.dir (PFLlib, HtFLlib)"),
    "leaf": Source(load_leaf, "train/*.json and test/*.json by user in data.dir (LEAF)"),
    "hub": Source(load_hub, "a Hugging Face data set saved to data.dir; extra hub"),
    "toy": Source(lambda _: toy(), "random patterns with noise, made on the spot", (1, 8, 8), 3),
    "points": Source(lambda _: points(), "three spiral arms in the plane", (2, 1, 1), 3),
}


def source(name: str) -> Source:
    """Where the data set of a name comes from: ours, or a plug-in's.

    Raises ``ValueError``, one line: there is none of this name, or the plug-in is no data set.
    """
    if name in DATASETS:
        return DATASETS[name]
    found = plugins.find("datasets", name)
    if found is None:
        there = plugins.choices("datasets", name, DATASETS)
        raise ValueError(f"unknown data.name {name!r}: choose from {there}")
    if isinstance(found, Source):
        return replace(found, load=external.loader(name, found.load))
    about = (inspect.getdoc(found) or "").partition("\n")[0]
    return Source(external.loader(name, found), about)


_DECIDE = {
    *("name", "dir", "download", "image_size", "samples", "test_samples", "seed"),
    *("label_column", "owner_column"),
}
"""What decides which samples there are, beside whether they are one client's own."""


def load(data: Data) -> Dataset:
    """The data set ``data.name``, cut and resized as the options say.

    ``data.samples`` and ``data.test_samples`` (0: all) take class-stratified subsets, drawn from
    the streams "samples" and "test-samples" of ``data.seed``. ``data.image_size`` (0: as is)
    resizes to a square once, bilinearly. Mean and standard deviation stay those of the full
    training set. Tensors are shared between callers and must not be changed in place. Where
    ``data.dir`` still asks for a client's number, it is the server's.
    """
    place = data.dir.replace(WHO, SERVER)
    if place != data.dir and not Path(place).expanduser().is_dir():
        raise ValueError(
            f"data.dir = {data.dir!r}: the server needs test data of its own in {place}"
        )
    decides = data.model_dump(include=_DECIDE) | {"dir": place}
    return _load(Data(**decides, partition=OWN if data.partition == OWN else "iid"))


@lru_cache(maxsize=4)
def _load(data: Data) -> Dataset:
    dataset = source(data.name).load(data)
    _check(data.name, dataset, every_class=data.partition != OWN)
    if data.samples:
        rows = stratified(dataset.y, data.samples, rng(data.seed, "samples"))
        dataset = dataset.trained_on(rows)
    if data.test_samples:
        rows = stratified(dataset.y_test, data.test_samples, rng(data.seed, "test-samples"))
        dataset = dataset.tested_on(rows)
    if data.image_size:
        public = dataset.x_public
        dataset = replace(
            dataset,
            x=resize(dataset.x, data.image_size),
            x_test=resize(dataset.x_test, data.image_size),
            x_public=None if public is None else resize(public, data.image_size),
        )
    return dataset


def _check(name: str, dataset: Dataset, *, every_class: bool) -> None:
    """Refuse a data set that cannot be learnt from, or is none.

    ``every_class``: it is all there is, so each class needs samples; a client's own need not have
    them.
    """
    external.check(name, dataset)
    counts = torch.bincount(dataset.y, minlength=dataset.num_classes)
    for label, count in zip(dataset.classes, counts.tolist(), strict=True):
        if count == 0 and every_class:
            raise ValueError(f"data set {name!r}: class {label!r} has no samples")
    if not len(dataset.y_test):
        raise ValueError(f"data set {name!r} has no test samples")


class Divided(NamedTuple):
    """A data set as a federation with a public set sees it."""

    pool: Dataset  #: what the clients' shares are cut from; the whole data set without a public set
    public: Tensor | None  #: images (M, C, H, W), the same in the same order everywhere
    labels: Tensor | None  #: true classes (M,), for the labelled upper bound; None if unknown


def divide(data: Data, seed: int) -> Divided:
    """The pool and the public set as ``data`` says: another data set, else a ``public`` share.

    With ``data.test = "merge"`` the test samples belong to what is divided. Raises ``ValueError``
    as ``_elsewhere`` and ``set_aside`` do.
    """
    dataset = _whole(data)
    if data.elsewhere:
        return Divided(dataset, *_elsewhere(data, dataset, seed))
    if data.public == 0:
        return Divided(dataset, None, None)
    return set_aside(dataset, data.public, seed)


def pool_of(data: Data, seed: int) -> Dataset:
    """What the clients' shares are cut from, as ``divide`` says; a public set that is another data
    set is not looked for.
    """
    return _whole(data) if data.elsewhere else divide(data, seed).pool


def _whole(data: Data) -> Dataset:
    dataset = load(data)
    if data.test == "merge":
        if data.partition == NATURAL:
            check_test_owners(data, dataset)
        return merged(dataset)
    return dataset


def _elsewhere(data: Data, dataset: Dataset, seed: int) -> tuple[Tensor, Tensor | None]:
    """The training images of another data set, for clients whose own data no common seed could
    divide, and their classes where they are those of the task.

    Images of ``public-name`` are brought to the shape of ``dataset``'s; without it those of
    ``public-dir``, read as ``name`` is, must have it. ``public-samples`` are drawn from the stream
    "public" of ``seed``.

    Raises ``ValueError``: it cannot be loaded, other channels or points, another shape, too few
    samples.
    """
    away = {
        "name": data.public_name or data.name,
        "dir": data.public_dir,
        "samples": 0,
        "test_samples": 0,
        "image_size": 0 if data.public_name else data.image_size,
    }
    try:
        other = load(data.model_copy(update=away))
    except ValueError as error:  # its keys are those of the public set
        line = str(error).replace("data.dir", "data.public-dir")
        raise ValueError(line.replace("data.name", "data.public-name")) from error
    return _fitted(other, data, dataset.shape, dataset.classes, seed)


@lru_cache(maxsize=4)
def _fitted(
    other: Dataset, data: Data, shape: tuple[int, int, int], classes: tuple[str, ...], seed: int
) -> tuple[Tensor, Tensor | None]:
    x, y = other.x, other.y
    if data.public_samples:
        rows = stratified(y, data.public_samples, rng(seed, "public"))
        x, y = x[rows], y[rows]
    if data.public_name:
        x = fitted(x, shape, f"data.public-name = {data.public_name!r}")
    elif other.shape != shape:
        raise ValueError(
            f"data.public-dir = {data.public_dir!r} has images {other.shape}, the data set {shape}"
        )
    return x, y if other.classes == classes else None


def check_test_owners(data: Data, dataset: Dataset) -> None:
    """Raise ``ValueError`` if clients shall get their own test samples, but nobody knows which."""
    if dataset.owner is not None and dataset.owner_test is None:
        raise ValueError(
            f"data.test = {data.test!r}: data set {dataset.name!r} does not say whose its test "
            "samples are; set data.test to 'split'"
        )


@lru_cache(maxsize=4)
def set_aside(dataset: Dataset, fraction: float, seed: int) -> Divided:
    """A random ``fraction`` of the training set loses its labels.

    Drawn from the stream "public" of ``seed``; public images are uint8 (M, C, H, W) with
    M = round(fraction · N), in the order of the training set. A data set that brings its own
    public images (``x_public``) keeps its whole training set as the pool, and ``fraction`` is of
    those images instead. DL-MH takes 0.8 of the training set.
    """
    whole, labels, least = dataset.x_public, dataset.y_public, 0
    if whole is None:
        whole, labels, least = dataset.x, dataset.y, 1
    n, room = round(fraction * len(whole)), len(whole) - least
    if not 1 <= n <= room:
        raise ValueError(
            f"a public set of {fraction} of {len(whole)} images has {n}: 1 to {room} are possible"
        )
    order = torch.from_numpy(rng(seed, "public").permutation(len(whole)))
    public, rest = order[:n].sort().values, order[n:].sort().values
    pool = dataset.trained_on(rest) if least else dataset
    return Divided(pool, whole[public], None if labels is None else labels[public])
