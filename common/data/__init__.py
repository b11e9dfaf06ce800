"""Data sets, their partitions over clients, and the public set.

A public (proxy) set is unlabelled samples that the server and all clients share. It is either held
out from the training set or another data set. Partitions divide the remaining samples, the pool;
``shares.py`` computes each client's share.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from common.data import decoded, external
from common.data.arrays import load_leaf, load_npz
from common.data.columns import load_client_csv, load_csv
from common.data.corpora import austen, fortunes, grammar, sentiment
from common.data.dataset import Dataset, fitted, merged, resize, strata, stratified
from common.data.embedded import diabetes, digits, points, several_digits, toy, waves
from common.data.folder import load_client_folders, load_folder
from common.data.hub import load_hub
from common.data.kinds import TOKENS, Shape, describe
from common.data.packaged import letters, satellite, smartwatch
from common.data.partition import PARTITIONS, local_train
from common.data.published import (
    CIFAR10,
    CIFAR100,
    EMNIST_LETTERS,
    FASHION_MNIST,
    MNIST,
    SVHN,
)
from common.data.texts import load_text_folder
from common.data.tokens import changed
from common.objectives import OBJECTIVES
from common.seeds import rng
from common.settings import plugins
from common.settings.config import OWN, SERVER, WHO, Data, not_allowed
from common.settings.section import kebab

LEAST = 2  #: smallest number of training samples of a client, because BatchNorm fails with one

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "Source", "load", "source"]


@final
@dataclass(frozen=True)
class Source:
    """Loader of a data set; ``shape`` of a sample and ``classes`` are None if they vary."""

    load: Callable[[Data], Dataset]
    description: str
    shape: Shape | None = None
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
    "csv": Source(load_csv, "train.csv and test.csv in data.dir: a table, texts, or signals"),
    "jsonl": Source(load_csv, "train.jsonl and test.jsonl in data.dir: an object a line, as csv"),
    "client-csv": Source(load_client_csv, "CSV files in data.dir, one folder per client"),
    "text-folder": Source(load_text_folder, "texts in data.dir, a *.txt file each"),
    "hub": Source(load_hub, "a Hugging Face data set saved to data.dir; extra hub"),
    "toy": Source(lambda _: toy(), "random patterns with noise, generated", (1, 8, 8), 3),
    "smartwatch": Source(
        smartwatch, "exercises of ten people with a smartwatch; PyPI's seglearn", (6, 100), 7
    ),
    "letters": Source(letters, "table of letters (Frey 1991); Debian's r-cran-mlbench", (16,), 26),
    "satellite": Source(satellite, "table of soils; Debian's r-cran-mlbench", (36,), 6),
    "sentiment": Source(
        sentiment, "rated sentences (Hutto 2014); archive of PyPI's vaderSentiment"
    ),
    "fortunes": Source(fortunes, "sayings of eight topics; Debian's fortunes"),
    "austen": Source(austen, "six novels, next tokens; Debian's r-cran-janeaustenr"),
    "grammar": Source(grammar, "texts of five Markov chains of letters, generated"),
    "several-digits": Source(
        lambda _: several_digits(), "up to four digits a picture, made of digits", (1, 16, 16), 10
    ),
    "diabetes": Source(
        lambda _: diabetes(), "progression of a disease (Efron 2004); scikit-learn", (10,), 1
    ),
    "waves": Source(lambda _: waves(), "signals of three frequencies, generated", (3, 128), 3),
    "points": Source(lambda _: points(), "three spiral arms in the plane", (2,), 3),
}


def source(name: str) -> Source:
    """Return the source of the data set ``name``, from ``DATASETS`` or a plug-in.

    Raises ``ValueError``, one line, for an unknown name or a plug-in that is not a data set.
    """
    if name in DATASETS:
        return DATASETS[name]
    plugin = plugins.required("datasets", name, DATASETS, f"unknown data.name {name!r}")
    if isinstance(plugin, Source):
        return replace(plugin, load=external.loader(name, plugin.load))
    description = (inspect.getdoc(plugin) or "").partition("\n")[0]
    return Source(external.loader(name, plugin), description)


OF_COLUMNS = ("csv", "jsonl", "client-csv", "hub")  #: data sets of texts with ``data.text_column``
_KEYS = {
    *("name", "dir", "digest", "download", "image_size", "samples", "test_samples", "seed"),
    *("label_column", "owner_column", "ignore_columns", "images", "kind", "window", "stride"),
    "owners",
    *("objective", "target_mean", "target_std"),
    *("text_column", "prompt", "tokenizer", "vocabulary", "max_length"),
}
"""Settings that select the samples; only partition ``own`` matters besides."""


def load(data: Data) -> Dataset:
    """Return the data set ``data.name``, reduced and resized according to ``data``.

    ``data.samples`` and ``data.test_samples`` (0: all) select class-stratified subsets, drawn from
    the streams "samples" and "test-samples" of ``data.seed``. ``data.image_size`` (0: unchanged)
    resizes images to a square, bilinearly. Mean and standard deviation are those of the full
    training set. Callers share the tensors and must not change them in place. A client number in
    ``data.dir`` that is not yet filled in is replaced by ``server``.

    Raises ``ValueError``, one line, for a folder whose content has another digest than
    ``data.digest``, and for a setting of texts that a built-in data set does not read.
    """
    dataset = _loaded(data)
    are_texts = dataset.kind is TOKENS
    is_read = {
        "text_column": are_texts and data.name in OF_COLUMNS,
        "prompt": dataset.objective == "next-token" and data.name in OF_COLUMNS,
        "tokenizer": are_texts,
        "vocabulary": dataset.tokenizer.startswith("hash:"),
        "max_length": are_texts,
    }
    for name in is_read if data.name in DATASETS else ():
        value, usual = getattr(data, name), Data.model_fields[name].default
        if value != usual and not is_read[name]:
            why = f"data.name = {data.name!r} and data.tokenizer = {data.tokenizer!r}"
            raise not_allowed(f"data.{kebab(name)}", value, f"{why}, which do not read it", usual)
    return dataset


def _loaded(data: Data) -> Dataset:
    """Return the data set as ``load`` does, which may ignore settings of texts."""
    folder = data.dir.replace(WHO, SERVER)
    if folder != data.dir and not Path(folder).expanduser().is_dir():
        raise ValueError(
            f"data.dir = {data.dir!r}: the server needs test data of its own in {folder}"
        )
    settings = data.model_dump(include=_KEYS) | {"dir": folder}
    partition = OWN if data.partition == OWN else "iid"
    dataset = _load(Data(**settings, partition=partition), changed(data.tokenizer))
    if data.small_owners == "leave-out" and data.by_owner:
        return _of_large_owners(dataset, data.test, data.test_fraction, data.validation)
    return dataset


@lru_cache(maxsize=4)
def _of_large_owners(
    dataset: Dataset, test: str, test_fraction: float, validation: float
) -> Dataset:
    """Return the data set without owners that have fewer than ``LEAST`` samples to train on.

    ``test``, ``test_fraction`` and ``validation``: the settings that decide how many are for
    training. The other owners are numbered anew.
    """
    if dataset.owner is None:
        return dataset
    counts = torch.bincount(dataset.owner, minlength=dataset.owners)
    if test == "merge" and dataset.owner_test is not None:
        counts += torch.bincount(dataset.owner_test, minlength=dataset.owners)
    fractions = [validation, *([test_fraction] if test != "own" else [])]
    small = [k for k, n in enumerate(counts.tolist()) if _trained(n, fractions) < LEAST]
    if not small:
        return dataset
    large = torch.ones(dataset.owners, dtype=torch.bool)
    large[small] = False
    if not large.any():
        raise ValueError(f"no owner of {dataset.name!r} has {LEAST} training samples")
    gone = ", ".join(_names(dataset)[k] for k in small)
    return _of_owners(
        dataset, large, f"owners with fewer than {LEAST} training samples are left out: {gone}"
    )


def _names(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the owners; numbers where they have none."""
    return dataset.account.owners or tuple(map(str, range(dataset.owners)))


def _of_owners(dataset: Dataset, wanted: Tensor, note: str) -> Dataset:
    """Return the data set of the owners that are true in ``wanted`` (owners,), numbered anew.

    Test samples without owners remain. ``note``: line for the account.
    """
    assert dataset.owner is not None
    new = wanted.cumsum(0) - 1
    rows = wanted[dataset.owner].nonzero()[:, 0]
    kept = dataset.trained_on(rows)
    owners: dict[str, Any] = {"owner": new[dataset.owner[rows]]}
    if dataset.owner_test is not None:
        rows = wanted[dataset.owner_test].nonzero()[:, 0]
        kept, owners["owner_test"] = kept.tested_on(rows), new[dataset.owner_test[rows]]
    names = _names(dataset)
    account = replace(
        dataset.account,
        notes=(*dataset.account.notes, note[:400]),
        owners=tuple(names[k] for k in wanted.nonzero()[:, 0].tolist()),
    )
    return replace(kept, account=account, **owners)


def _chosen(dataset: Dataset, listed: str) -> Dataset:
    """Return the data set of the owners in ``data.owners``.

    Raises ``ValueError``, one line, without owners, for an unknown one, and if a part is empty.
    """
    names, chosen = _names(dataset), [name.strip() for name in listed.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in names]
    if unknown or dataset.owner is None or not chosen:
        what = f"unknown owner {unknown[0]!r} in " if unknown and names else ""
        some = ", ".join(names[:20]) + ", …" * (len(names) > 20)
        why = f"its owners are {some}" if names else "its samples have no owners"
        raise ValueError(f"{what}data.owners = {listed!r}: data set {dataset.name!r}: {why}")
    wanted = torch.tensor([name in chosen for name in names])
    kept = _of_owners(dataset, wanted, f"only samples of data.owners = {listed}")
    for part, y in (("training", kept.y), ("testing", kept.y_test)):
        if not len(y):
            raise ValueError(f"data.owners = {listed!r}: no samples for {part}")
    return kept


def _trained(samples: int, fractions: Sequence[float]) -> int:
    """Return how many samples are left for training after ``local_train`` of each fraction."""
    for fraction in fractions:
        samples = min(samples, local_train(samples, fraction))
    return samples


@lru_cache(maxsize=4)
def _load(data: Data, stamp: int) -> Dataset:
    """Return the data set; ``stamp``: when the tokenizer's file last changed, for the cache."""
    if data.digest:
        decoded.check_content(data)
    without = data.name in OF_COLUMNS and not data.text_column
    if data.objective == "next-token" and (without or data.name in ("folder", "client-folders")):
        raise ValueError(
            f"data.objective = 'next-token' is not allowed with data.name = {data.name!r}"
            f"{' without data.text-column' * without}; allowed: texts, such as text-folder"
        )
    dataset = source(data.name).load(data)
    every_class = data.partition != OWN and not dataset.account.declared
    try:
        _check(data.name, dataset, every_class=every_class)
    except ValueError as error:
        raise ValueError(f"{data.dir}: {error}" if data.dir else str(error)) from None
    if data.objective not in ("auto", dataset.objective):
        raise ValueError(
            f"data.objective = {data.objective!r} is not allowed: data set {data.name!r} has "
            f"{dataset.objective}; allowed: 'auto', {dataset.objective!r}"
        )
    if data.kind not in ("auto", dataset.kind.name):
        raise ValueError(
            f"data.kind = {data.kind!r} is not allowed: data set {data.name!r} has "
            f"{describe(dataset.shape)}"
        )
    if data.owners:
        dataset = _chosen(dataset, data.owners)
    if dataset.objective == "number" and (data.target_mean or not dataset.scale[0]):
        dataset = replace(dataset, scale=_scale(data, dataset))
    if data.samples:
        rows = stratified(strata(dataset.y), data.samples, rng(data.seed, "samples"))
        dataset = dataset.trained_on(rows)
    if data.test_samples:
        rows = stratified(strata(dataset.y_test), data.test_samples, rng(data.seed, "test-samples"))
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
    """Raise ``ValueError`` for an invalid data set or one without the necessary samples.

    ``every_class``: every class needs training samples. A client's own data set may lack classes,
    and so may one whose files list the classes.
    """
    external.check(name, dataset)
    try:
        OBJECTIVES[dataset.objective].check(dataset.y, dataset.classes, every=every_class)
    except ValueError as error:
        raise ValueError(f"data set {name!r}: {error}") from None
    if not len(dataset.y_test):
        raise ValueError(f"data set {name!r} has no test samples")


def _numbers(text: str) -> tuple[float, ...]:
    """Return the finite numbers of a setting; none if one of them is no finite number."""
    try:
        values = tuple(float(value) for value in text.split(",") if value)
    except ValueError:
        return ()
    return values if all(map(math.isfinite, values)) else ()


def _scale(data: Data, dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each target: the settings', else of the samples.

    With partition ``own`` the samples of each client differ, so the settings must have both.
    """
    own = data.target_mean, data.target_std
    given = tuple(map(_numbers, own))
    if not any(own) and data.partition != OWN:
        std, mean = torch.std_mean(dataset.y.double(), 0, correction=0)
        return tuple(mean.tolist()), tuple(std.tolist())
    if [len(values) for values in given] != [dataset.num_classes] * 2 or min(given[1]) <= 0:
        why = "clients with data of their own need a common scale: " if not any(own) else ""
        raise ValueError(
            f"{why}data.target-mean and data.target-std should each have {dataset.num_classes} "
            f"finite numbers, for {', '.join(dataset.classes)}; deviations are above 0"
        )
    return given[0], given[1]


class Divided(NamedTuple):
    """Data set divided into the pool for the clients and the public set."""

    pool: Dataset  #: data set that the clients' shares are drawn from
    public: Tensor | None  #: samples (M, C, ...), in the same order on server and clients
    labels: Tensor | None  #: true classes (M,), for the labelled upper bound; None if unknown


def divide(data: Data, seed: int) -> Divided:
    """Return the pool and the public set: another data set, or a share ``data.public`` of this one.

    With ``data.test = "merge"`` the test samples are divided as well. Raises ``ValueError`` as
    ``_elsewhere`` and ``set_aside`` do.
    """
    dataset = _undivided(data)
    if data.elsewhere:
        return Divided(dataset, *_elsewhere(data, dataset, seed))
    if data.public == 0:
        return Divided(dataset, None, None)
    return set_aside(dataset, data.public, seed)


def pool_of(data: Data, seed: int) -> Dataset:
    """Return the pool of ``divide`` without loading a public set that is another data set."""
    return _undivided(data) if data.elsewhere else divide(data, seed).pool


def _undivided(data: Data) -> Dataset:
    dataset = load(data)
    if data.test == "merge":
        if data.by_owner:
            check_test_owners(data, dataset)
        return merged(dataset)
    return dataset


def _elsewhere(data: Data, dataset: Dataset, seed: int) -> tuple[Tensor, Tensor | None]:
    """Return another data set's training images as public set, and labels if the classes are equal.

    Images of ``public-name`` are converted to the shape of ``dataset``. Without ``public-name``,
    ``public-dir`` is read as ``name`` is, and its images must have that shape. ``public-samples``
    are drawn from the stream "public" of ``seed``.

    Raises ``ValueError`` if it cannot be loaded, has incompatible channels, points or another
    shape, or has too few samples.
    """
    name = data.public_name or data.name
    in_files = name in DATASETS and DATASETS[name].classes is None
    changes = {
        "name": name,
        "objective": data.objective if in_files else "auto",  # its labels are not learnt
        "dir": data.public_dir,
        "digest": "",
        "samples": 0,
        "test_samples": 0,
        "owners": "",
        "small_owners": "refuse",
        "image_size": 0 if data.public_name else data.image_size,
    }
    try:
        other = _loaded(data.model_copy(update=changes))
    except ValueError as error:  # name the keys of the public set in the message
        line = str(error).replace("data.dir", "data.public-dir")
        raise ValueError(line.replace("data.name", "data.public-name")) from error
    if other.tokenizer != dataset.tokenizer:
        raise ValueError(
            f"data.{data.elsewhere} has the tokenizer {other.tokenizer or 'none'!r}, the data set "
            f"{dataset.tokenizer or 'none'!r}"
        )
    x, y = _fitted(other, data, dataset.shape, dataset.classes, seed)
    return x, y if other.objective == dataset.objective else None


@lru_cache(maxsize=4)
def _fitted(
    other: Dataset, data: Data, shape: Shape, classes: tuple[str, ...], seed: int
) -> tuple[Tensor, Tensor | None]:
    x, y = other.x, other.y
    if data.public_samples:
        rows = stratified(strata(y), data.public_samples, rng(seed, "public"))
        x, y = x[rows], y[rows]
    if data.public_name and other.shape != shape:
        x = fitted(x, shape, f"data.public-name = {data.public_name!r}")
    elif not data.public_name and other.shape != shape:
        raise ValueError(
            f"data.public-dir = {data.public_dir!r} has {describe(other.shape)}, the data set "
            f"{describe(shape)}"
        )
    return x, y if other.classes == classes else None


def check_test_owners(data: Data, dataset: Dataset) -> None:
    """Raise ``ValueError`` if training samples have owners and test samples have none."""
    if dataset.owner is not None and dataset.owner_test is None:
        raise ValueError(
            f"data.test = {data.test!r}: data set {dataset.name!r} has no owners of test samples; "
            "set data.test to 'split'"
        )


@lru_cache(maxsize=4)
def set_aside(dataset: Dataset, fraction: float, seed: int) -> Divided:
    """Move a random ``fraction`` of the training set to the public set, without labels.

    The draw uses the stream "public" of ``seed``. Public samples are (M, C, ...) with
    M = round(fraction · N), in the order of the training set. If the data set has public images
    (``x_public``), ``fraction`` refers to them, and the pool is the whole training set. DL-MH uses
    0.8 of the training set.
    """
    images, labels, least = dataset.x_public, dataset.y_public, 0
    if images is None:
        images, labels, least = dataset.x, dataset.y, 1
    n, most = round(fraction * len(images)), len(images) - least
    if not 1 <= n <= most:
        raise ValueError(
            f"a public set of {fraction} of {len(images)} images has {n}: 1 to {most} are possible"
        )
    order = torch.from_numpy(rng(seed, "public").permutation(len(images)))
    public, remaining = order[:n].sort().values, order[n:].sort().values
    pool = dataset.trained_on(remaining) if least else dataset
    return Divided(pool, images[public], None if labels is None else labels[public])
