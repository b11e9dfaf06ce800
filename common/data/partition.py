"""How the training samples fall to the clients.

A partition is a pure function from labels (N,) to one index array per client; what it draws comes
from the generator it is given. ``split`` is the one entry: it looks the partition up by name,
hands it the options it takes, and names the draw.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from torch import Tensor

from common.config import Data
from common.data.dirichlet import fedkf_dirichlet, label_dirichlet, quantity_dirichlet
from common.data.niid import iid_draw, niid1, niid2, niid3
from common.seeds import rng


@final
@dataclass(frozen=True)
class Partition:
    """``function(labels, clients, rng, **options)`` and where the rule comes from."""

    function: Callable[..., list[np.ndarray]]
    description: str
    source: str

    @property
    def options(self) -> tuple[str, ...]:
        """What the rule asks for by name: knobs of [data], and the number of classes."""
        named = inspect.signature(self.function).parameters.values()
        return tuple(each.name for each in named if each.kind is each.KEYWORD_ONLY)


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A random split into disjoint shares whose sizes differ by one at most."""
    return [np.sort(share) for share in np.array_split(rng.permutation(len(labels)), clients)]


def own(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Everything here is this client's: each machine has a data set of its own."""
    return [np.arange(len(labels))] * clients


OWN = "own"  #: the one in which each client has a data set of its own
PARTITIONS: dict[str, Partition] = {
    "iid": Partition(iid, "equal random shares", "McMahan et al. 2017"),
    OWN: Partition(own, "each client's data set is its own: nothing is cut", "deployments"),
    "label_dirichlet": Partition(
        label_dirichlet,
        "every class is dealt out by a Dirichlet draw; redrawn until each client has min_size",
        "Li et al. 2022 (NIID-Bench)",
    ),
    "quantity_dirichlet": Partition(
        quantity_dirichlet,
        "the sizes are a Dirichlet draw, the labels stay IID",
        "FedORION, the released code",
    ),
    "fedkf_dirichlet": Partition(
        fedkf_dirichlet,
        "per-class Dirichlet in groups of clients, with a distinct dominant client per class",
        "FedKF, the released code",
    ),
    "iid_draw": Partition(
        iid_draw, "all classes in equal parts, drawn with replacement", "DL-MH, IID"
    ),
    "niid1": Partition(niid1, "two classes of ten per client", "DL-MH, NIID-1"),
    "niid2": Partition(niid2, "five shared classes and one of its own", "DL-MH, NIID-2"),
    "niid3": Partition(niid3, "four classes, each on two devices", "DL-MH, NIID-3"),
}


def split(
    data: Data, labels: np.ndarray | Tensor, num_classes: int, clients: int, seed: int
) -> list[np.ndarray]:
    """Sorted int64 indices into ``labels`` (N,) for every client, by ``data.partition``.

    Drawn from the stream "partition" of ``data.seed``, or of ``seed`` where that is 0.
    Shares are disjoint except for ``niid*`` and ``iid_draw``, which draw with replacement. Raises
    ValueError for an unknown partition, fewer samples than clients, or a rule that cannot be
    satisfied.
    """
    partition = PARTITIONS.get(data.partition)
    if partition is None:
        raise ValueError(
            f"unknown data.partition {data.partition!r}: choose from {', '.join(PARTITIONS)}"
        )
    y = np.asarray(labels)
    if clients < 1:
        raise ValueError(f"{clients} clients: at least 1 is needed")
    if clients > len(y):
        raise ValueError(f"{clients} clients cannot share {len(y)} samples: some would have none")
    options = {
        name: num_classes if name == "num_classes" else getattr(data, name)
        for name in partition.options
    }
    shares = partition.function(y, clients, rng(data.seed or seed, "partition"), **options)
    assert len(shares) == clients and all(len(share) for share in shares)
    return shares


def local_split(
    indices: np.ndarray, test_fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """One client's (train, test) share: a shuffle, then the first ⌊(1 − fraction)·n⌋ train.

    Sorted. Copies of one sample (``niid*`` draws with replacement) stay on one side, so no sample
    is both trained on and tested. At least one distinct sample trains (FedKF, the released code).
    ``test_fraction`` is in [0, 1).
    """
    distinct = np.unique(indices)
    n = max(int((1 - test_fraction) * len(distinct) + 1e-9), 1)
    train = np.sort(rng.permutation(distinct)[:n])
    mask = np.isin(indices, train)
    return np.sort(indices[mask]), np.sort(indices[~mask])
