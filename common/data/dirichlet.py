"""Partitions drawn from a Dirichlet distribution: three rules that go by one name.

The smaller alpha, the more skewed. ``label_dirichlet`` skews classes, ``quantity_dirichlet`` only
sizes, ``fedkf_dirichlet`` classes with every client dominant in some of them.
"""

import itertools

import numpy as np

TRIES = 1000  #: complete draws before a partition is given up as impossible
REDRAWS = 100_000  #: draws of one class's proportions before the same


def label_dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float, min_size: int
) -> list[np.ndarray]:
    """Disjoint shares: for every class p ~ Dir(alpha), cut at the cumulative sums of p.

    p_k is 0 for a client that already holds N/clients samples, and the rest is renormalised;
    everything is redrawn until each client holds ``min_size`` samples (Li et al. 2022, "Federated
    Learning on Non-IID Data Silos", section IV; used by MOON, InCo Aggregation and FedIN).
    """
    if min_size * clients > len(labels):
        raise ValueError(
            f"data.min-size = {min_size} for {clients} clients needs {min_size * clients} samples, "
            f"but there are only {len(labels)}"
        )
    classes = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for _ in range(TRIES):
        counts = _label_counts([len(c) for c in classes], clients, rng, alpha)
        if counts.sum(0).min() >= max(min_size, 1):
            break
    else:
        raise ValueError(
            f"label_dirichlet with alpha = {alpha} gave {clients} clients no partition with at "
            f"least {min_size} samples each in {TRIES} tries: raise data.alpha, lower "
            "data.min-size or take fewer clients"
        )
    return _deal(classes, counts, rng)


LEAST = 3
"""Samples of which a fifth may be kept for testing and two still train."""
FLOOR = 6
"""Samples that a client with fewer than ``LEAST`` is given."""


def quantity_dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float
) -> list[np.ndarray]:
    """Disjoint shares of a shuffle: sizes ⌊s·N⌋ with s ~ Dir(alpha), the remainder to the last.

    Labels are IID, only the quantity is skewed (FedORION, the released code; the paper calls this
    its non-IID setting). There a client that got nothing receives ``FLOOR`` samples; here so does
    one that got fewer than ``LEAST``, which could train no network with BatchNorm. The next client,
    cyclically, that keeps more than it gives is the donor.
    """
    n = len(labels)
    sizes = np.floor(rng.dirichlet(np.full(clients, alpha)) * n).astype(np.int64)
    sizes[-1] += n - sizes.sum()
    for k in np.flatnonzero(sizes < LEAST):
        order = np.roll(np.arange(clients), -int(k) - 1)
        donors = order[sizes[order] > 2 * FLOOR]
        if not len(donors):
            raise ValueError(
                f"quantity_dirichlet: {n} samples are too few to give each of {clients} clients "
                f"{FLOOR}: take fewer clients or raise data.alpha"
            )
        sizes[donors[0]] -= FLOOR - sizes[k]
        sizes[k] = FLOOR
    shares = np.split(rng.permutation(n), np.cumsum(sizes)[:-1])
    return [np.sort(share) for share in shares]


def fedkf_dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float, num_classes: int
) -> list[np.ndarray]:
    """Disjoint shares in which the largest holders of the classes differ.

    Clients are cut into groups of ``num_classes`` (the last has the rest); each class is divided
    among the groups in proportion to their sizes. Within a group p ~ Dir(alpha) for every class,
    redrawn until its largest entry falls on a client that has not been largest in this cycle; when
    every client has been, a new cycle begins. Client k gets ⌊p_k·n⌋, one random client the rest
    (FedKF, the released code).
    """
    groups = [range(a, min(a + num_classes, clients)) for a in range(0, clients, num_classes)]
    ends = np.array([0, *(group.stop for group in groups)])
    classes = [np.flatnonzero(labels == c) for c in range(num_classes)]
    counts = np.zeros((num_classes, clients), dtype=np.int64)
    for group, (start, stop) in zip(groups, itertools.pairwise(ends), strict=True):
        waiting = set(range(len(group)))
        for c, members in enumerate(classes):
            n = len(members) * stop // clients - len(members) * start // clients
            p = _dominated_by(waiting, len(group), alpha, rng)
            waiting.discard(int(np.argmax(p)))
            waiting = waiting or set(range(len(group)))
            share = np.floor(p * n).astype(np.int64)
            share[rng.integers(len(group))] += n - share.sum()
            counts[c, group.start : group.stop] = share
    if (empty := np.flatnonzero(counts.sum(0) == 0)).size:
        raise ValueError(
            f"fedkf_dirichlet with alpha = {alpha} leaves client {empty[0]} of {clients} without "
            f"samples ({len(labels)} in all): take fewer clients or another data.seed"
        )
    return _deal(classes, counts, rng)


def _label_counts(
    sizes: list[int], clients: int, rng: np.random.Generator, alpha: float
) -> np.ndarray:
    """One draw of (classes, clients) counts by the NIID-Bench rule."""
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for c, n in enumerate(sizes):
        hungry = counts.sum(0) < sum(sizes) / clients
        for _ in range(REDRAWS):
            p = rng.dirichlet(np.full(clients, alpha)) * hungry
            if p.sum() > 0:
                break
        else:
            raise ValueError(f"data.alpha = {alpha} is too small for {clients} clients: raise it")
        cuts = np.floor(np.cumsum(p / p.sum())[:-1] * n).astype(np.int64)
        counts[c] = np.diff(np.concatenate([[0], np.minimum(cuts, n), [n]]))
    return counts


def _dominated_by(
    waiting: set[int], size: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """A draw of Dir(alpha) whose largest entry belongs to one of ``waiting``."""
    for _ in range(REDRAWS):
        p = rng.dirichlet(np.full(size, alpha))
        if int(np.argmax(p)) in waiting:
            return p
    raise ValueError(f"data.alpha = {alpha} is too small for {size} clients: raise it")


def _deal(
    classes: list[np.ndarray], counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Shuffle every class and hand client k ``counts[c, k]`` samples of class c."""
    dealt = [
        np.split(rng.permutation(members), np.cumsum(row)[:-1])
        for members, row in zip(classes, counts, strict=True)
    ]
    return [np.sort(np.concatenate(share)) for share in zip(*dealt, strict=True)]
