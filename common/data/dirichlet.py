"""Three partitions drawn from Dirichlet distributions.

A smaller alpha means more skew. ``label_dirichlet`` skews classes, ``quantity_dirichlet`` only
sizes, ``fedkf_dirichlet`` classes such that every client dominates some of them.
"""

import itertools

import numpy as np

TRIES = 1000  #: complete draws before a partition counts as impossible
REDRAWS = 100_000  #: draws of one class's proportions before it counts as impossible


def label_dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float, min_size: int
) -> list[np.ndarray]:
    """Return disjoint shares; each class is cut at the cumulative sums of p ~ Dir(alpha).

    p_k is 0 for a client that already has N/clients samples, and the other entries are
    renormalised. The draw is repeated until each client has ``min_size`` samples (Li et al. 2022,
    "Federated Learning on Non-IID Data Silos", section IV; used by MOON, InCo Aggregation and
    FedIN).
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
"""Smallest share: with a fifth for testing, two samples remain for training."""
FLOOR = 6
"""Number of samples that a client with fewer than ``LEAST`` receives."""


def quantity_dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, *, alpha: float
) -> list[np.ndarray]:
    """Return disjoint random shares of sizes ⌊s·N⌋, s ~ Dir(alpha); the last gets the remainder.

    Labels are IID, only the quantity is skewed (FedORION, the released code; the paper calls this
    its non-IID setting). In that code a client without samples receives ``FLOOR`` samples. Here a
    client with fewer than ``LEAST`` receives them too, because it could not train BatchNorm. They
    come from the next client, cyclically, with more than 2 · ``FLOOR`` samples.
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
    """Return disjoint shares in which different clients dominate different classes.

    Clients form groups of ``num_classes`` (the last may be smaller). Each class is divided among
    the groups in proportion to their sizes. Within a group, p ~ Dir(alpha) is drawn for every class
    until its largest entry belongs to a client that was not yet the largest in this cycle. After
    every client was the largest, a new cycle starts. Client k gets ⌊p_k·n⌋ samples, and one random
    client the remainder (FedKF, the released code).
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
    """Draw counts (classes, clients) by the NIID-Bench rule."""
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for c, n in enumerate(sizes):
        below_mean = counts.sum(0) < sum(sizes) / clients
        for _ in range(REDRAWS):
            p = rng.dirichlet(np.full(clients, alpha)) * below_mean
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
    """Draw from Dir(alpha) until the largest entry belongs to one of ``waiting``."""
    for _ in range(REDRAWS):
        p = rng.dirichlet(np.full(size, alpha))
        if int(np.argmax(p)) in waiting:
            return p
    raise ValueError(f"data.alpha = {alpha} is too small for {size} clients: raise it")


def _deal(
    classes: list[np.ndarray], counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Shuffle every class and give client k ``counts[c, k]`` samples of class c."""
    dealt = [
        np.split(rng.permutation(members), np.cumsum(row)[:-1])
        for members, row in zip(classes, counts, strict=True)
    ]
    return [np.sort(np.concatenate(share)) for share in zip(*dealt, strict=True)]
