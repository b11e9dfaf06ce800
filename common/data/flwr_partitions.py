"""Partitions of flwr-datasets (the extra ``hub``), over the labels of any data set.

The samples are shuffled first, because most of these rules cut a data set as it lies. What is drawn
then comes from the partitioner's own generator, seeded by ours. The import takes every process some
seconds.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import numpy as np

from common.extras import imported

LABEL, ROW = "label", "row"


def dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float, min_size: int
) -> list[np.ndarray]:
    """Every class dealt out by a Dirichlet draw, redrawn until each client has ``min_size``."""
    least = {"min_partition_size": min_size}
    return _dealt("Dirichlet", labels, clients, rng, partition_by=LABEL, alpha=alpha, **least)


def pathological(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, classes_per_client: int
) -> list[np.ndarray]:
    """So many random classes for each client; a class that nobody draws is left out."""
    each = {"num_classes_per_partition": classes_per_client}
    return _dealt("Pathological", labels, clients, rng, partition_by=LABEL, **each)


def shard(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, classes_per_client: int
) -> list[np.ndarray]:
    """Sorted by class and cut into shards, of which each client gets so many."""
    each = {"num_shards_per_partition": classes_per_client}
    return _dealt("Shard", labels, clients, rng, partition_by=LABEL, **each)


def linear(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Client k has k + 1 parts of all; labels are IID."""
    return _dealt("Linear", labels, clients, rng)


def square(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Client k has (k + 1)² parts of all; labels are IID."""
    return _dealt("Square", labels, clients, rng)


def exponential(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Client k has e^(k + 1) parts of all; labels are IID."""
    return _dealt("Exponential", labels, clients, rng)


def _dealt(
    name: str, labels: np.ndarray, clients: int, rng: np.random.Generator, **options: Any
) -> list[np.ndarray]:
    """What the partitioner ``name`` makes of the labels (N,); one line for what it cannot make."""
    what = f"data.partition = 'flwr-{name.lower()}'"
    datasets, partitioners = imported("datasets"), imported("flwr_datasets.partitioner")
    if options:
        options["seed"] = int(rng.integers(2**31))
    rows = rng.permutation(len(labels))
    table = datasets.Dataset.from_dict({LABEL: labels[rows], ROW: rows})
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),  # its progress bars
    ):
        warnings.simplefilter("ignore")
        partitioner = getattr(partitioners, f"{name}Partitioner")(clients, **options)
        partitioner.dataset = table
        try:
            return [np.array(partitioner.load_partition(k)[ROW]) for k in range(clients)]
        except ValueError as error:
            raise ValueError(f"{what}: {' '.join(str(error).split())}") from error
