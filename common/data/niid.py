"""NIID-1, NIID-2 and NIID-3 of DL-MH: fixed class patterns over devices, drawn with replacement.

The patterns are stated for 10 classes and 5 devices. ``niid_scale`` says what happens otherwise:
"period5" repeats them (device k has pattern k mod 5, slot j of ten is the j-th tenth of the
classes), "adapt" stretches the rule to the number of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np

SLOTS = 10
PERIOD = 5


Pattern = Callable[[int, int], list[list[int]]]  #: devices and slots to the slots of each device
Shares = Callable[..., list[np.ndarray]]


def _drawn(pattern: Pattern) -> Shares:
    """The partition by a pattern, drawn with replacement."""

    def partition(
        labels: np.ndarray,
        clients: int,
        rng: np.random.Generator,
        *,
        num_classes: int,
        niid_scale: str = "period5",
        per_client: int = 0,
    ) -> list[np.ndarray]:
        return _draw(labels, rng, per_client, _owned(pattern, clients, num_classes, niid_scale))

    partition.__doc__ = pattern.__doc__
    return partition


@_drawn
def niid1(devices: int, slots: int) -> list[list[int]]:
    """Device k holds classes {2k, 2k + 1} in equal parts: no class on two devices (of five).

    adapt: the classes in blocks of num_classes / clients.
    ``per_client`` samples each (0: N // clients), drawn with replacement from the class, so a
    share may hold a sample twice and two devices may share samples. DL-MH, NIID-1.
    """
    return _blocks(range(slots), devices)


@_drawn
def niid2(devices: int, slots: int) -> list[list[int]]:
    """Device k holds classes {0, .., 4} and 5 + k, each with 1/6 of its samples.

    adapt: the first half of the classes everywhere, the others in one block per device.
    Drawn as in :func:`niid1`. DL-MH, NIID-2.
    """
    shared = range(slots // 2)
    return [[*shared, *own] for own in _blocks(range(slots // 2, slots), devices)]


@_drawn
def niid3(devices: int, slots: int) -> list[list[int]]:
    """Each class on exactly two devices, each device with four classes in equal parts.

    Class c belongs to the two devices of the c-th pair (a, b), a < b, in lexicographic order over
    the ten pairs of five devices: {0,1,2,3}, {0,4,5,6}, {1,4,7,8}, {2,5,7,9}, {3,6,8,9}.
    adapt: the pairs of all devices, the classes in one block per pair.
    Drawn as in :func:`niid1`. DL-MH, NIID-3.
    """
    pairs = list(combinations(range(devices), 2))
    blocks = _blocks(range(slots), len(pairs))
    return [
        [j for pair, block in zip(pairs, blocks, strict=True) if k in pair for j in block]
        for k in range(devices)
    ]


def iid_draw(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    num_classes: int,
    per_client: int = 0,
) -> list[np.ndarray]:
    """Every device holds all classes in equal parts. Drawn as in :func:`niid1`. DL-MH, IID."""
    return _draw(labels, rng, per_client, [list(range(num_classes))] * clients)


def _blocks(items: range, parts: int) -> list[list[int]]:
    """Runs of consecutive items, none empty, whose lengths differ by one at most."""
    if not 1 <= parts <= len(items):
        raise ValueError(
            f"data.niid-scale = 'adapt': {len(items)} classes cannot be cut into {parts} blocks: "
            "take fewer clients (niid3 needs two) or set data.niid-scale = 'period5'"
        )
    return [block.tolist() for block in np.array_split(np.array(items), parts)]


def _owned(pattern: Pattern, clients: int, num_classes: int, scale: str) -> list[list[int]]:
    """The classes of every client."""
    if scale == "adapt":
        return pattern(clients, num_classes)
    assert scale == "period5", scale
    if num_classes < SLOTS:
        raise ValueError(
            f"data.niid-scale = 'period5' needs at least {SLOTS} classes, the data set has "
            f"{num_classes}: set data.niid-scale = 'adapt'"
        )
    slots = _blocks(range(num_classes), SLOTS)
    devices = pattern(PERIOD, SLOTS)
    return [[c for j in devices[k % PERIOD] for c in slots[j]] for k in range(clients)]


def _draw(
    labels: np.ndarray, rng: np.random.Generator, per_client: int, owned: list[list[int]]
) -> list[np.ndarray]:
    size = per_client or len(labels) // len(owned)
    if size < max(len(classes) for classes in owned):
        raise ValueError(
            f"data.per-client = {size} samples are fewer than the "
            f"{max(len(classes) for classes in owned)} classes of a client"
        )
    members = {c: np.flatnonzero(labels == c) for classes in owned for c in classes}
    if empty := [c for c, index in members.items() if not len(index)]:
        raise ValueError(f"class {empty[0]} has no samples to draw from")
    shares = []
    for classes in owned:
        counts = [len(part) for part in np.array_split(np.arange(size), len(classes))]
        drawn = [rng.choice(members[c], n) for c, n in zip(classes, counts, strict=True)]
        shares.append(np.sort(np.concatenate(drawn)))
    return shares
