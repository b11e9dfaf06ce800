"""How the training samples fall to the clients.

A partition is a pure function from a data set to one index array per client; what it draws comes
from the generator it is given. ``split`` is the one entry: it looks the partition up by name,
hands it the options it takes, names the draw, and checks what comes back. Most rules look at the
labels (N,) alone, and are written so.

NIID-1, NIID-2 and NIID-3 are DL-MH's: fixed class patterns over devices, drawn with replacement,
stated for 10 classes and 5 devices. ``niid_scale`` says what happens otherwise: "period5" repeats
them (device k has pattern k mod 5, slot j of ten is the j-th tenth of the classes), "adapt"
stretches the rule to the number of devices.
"""

import contextlib
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import combinations
from typing import final

import numpy as np

from common.data.dataset import Dataset
from common.data.dirichlet import fedkf_dirichlet, label_dirichlet, quantity_dirichlet
from common.data.external import check_shares, guarded, placed
from common.settings import plugins
from common.settings.config import NATURAL, OWN, Data
from common.settings.extras import imported
from common.training.seeds import rng

SLOTS = 10  #: of DL-MH's patterns
PERIOD = 5  #: devices of DL-MH's patterns

Pattern = Callable[[int, int], list[list[int]]]  #: devices and slots to the slots of each device
Rule = Callable[..., list[np.ndarray]]  #: data set, clients, rng and options to the shares


@final
@dataclass(frozen=True)
class Partition:
    """``function(dataset, clients, rng, **options)`` and where the rule comes from."""

    function: Rule
    description: str
    source: str
    takes: Sequence[str] = ()  #: options that are not in the rule's signature

    @property
    def options(self) -> tuple[str, ...]:
        """What the rule asks for by name: knobs of [data], and the number of classes."""
        named = inspect.signature(self.function).parameters.values()
        return (*self.takes, *(each.name for each in named if each.kind is each.KEYWORD_ONLY))


def of_labels(rule: Rule) -> Rule:
    """A rule for labels (N,) as a rule for data sets."""

    @wraps(rule)
    def partition(
        dataset: Dataset, clients: int, rng: np.random.Generator, **options: object
    ) -> list[np.ndarray]:
        return rule(dataset.y.numpy(), clients, rng, **options)

    return partition


def natural(dataset: Dataset, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Client k gets what is owner k's, as the data set says."""
    if dataset.owner is None:
        raise ValueError(
            f"data.partition = {NATURAL!r}: data set {dataset.name!r} does not say whose its "
            "samples are; choose another partition"
        )
    if dataset.owners != clients:
        raise ValueError(
            f"data.partition = {NATURAL!r}: the samples of {dataset.name!r} belong to "
            f"{dataset.owners} owners, but clients = {clients}; 0 stands for one of each owner"
        )
    return [np.flatnonzero(dataset.owner.numpy() == k) for k in range(clients)]


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A random split into disjoint shares whose sizes differ by one at most."""
    return [np.sort(share) for share in np.array_split(rng.permutation(len(labels)), clients)]


def own(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Everything here is this client's: each client loads a data set of its own."""
    return [np.arange(len(labels))] * clients


def _drawn(pattern: Pattern) -> Rule:
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


FLOWER: dict[str, tuple[str, dict[str, str]]] = {
    "Dirichlet": ("", {"alpha": "alpha", "min_size": "min_partition_size"}),
    "Pathological": ("", {"classes_per_client": "num_classes_per_partition"}),
    "Shard": ("", {"classes_per_client": "num_shards_per_partition"}),
    "Linear": (": sizes 1, 2, 3, …", {}),
    "Square": (": sizes 1, 4, 9, …", {}),
    "Exponential": (": sizes e, e², e³, …", {}),
}
"""Partitioners of flwr-datasets, what to say of each, and its options: our names and its own."""


def _dealt(
    name: str, labels: np.ndarray, clients: int, rng: np.random.Generator, **options: object
) -> list[np.ndarray]:
    """Return the shares that a partitioner of flwr-datasets (extra ``hub``) makes of labels (N,).

    The samples are shuffled first, because most of these rules cut a data set as it lies. What is
    drawn then comes from the partitioner's own generator, seeded by ours. The import takes every
    process some seconds. Raises ``ValueError``, one line, for what it cannot make.
    """
    what = f"data.partition = 'flwr-{name.lower()}'"
    datasets, partitioners = imported("datasets"), imported("flwr_datasets.partitioner")
    given = {FLOWER[name][1][key]: value for key, value in options.items()}
    if options:
        given |= {"partition_by": "label", "seed": int(rng.integers(2**31))}
    rows = rng.permutation(len(labels))
    table = datasets.Dataset.from_dict({"label": labels[rows], "row": rows})
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),  # its progress bars
    ):
        warnings.simplefilter("ignore")
        partitioner = getattr(partitioners, f"{name}Partitioner")(clients, **given)
        partitioner.dataset = table
        try:
            return [np.array(partitioner.load_partition(k)["row"]) for k in range(clients)]
        except ValueError as error:
            raise ValueError(f"{what}: {' '.join(str(error).split())}") from error


PARTITIONS: dict[str, Partition] = {
    "iid": Partition(of_labels(iid), "equal random shares", "McMahan et al. 2017"),
    NATURAL: Partition(
        natural, "each client has what is its own, as the data set says", "LEAF, PFLlib"
    ),
    OWN: Partition(
        of_labels(own), "each client's data set is its own: nothing is cut", "deployments"
    ),
    "label_dirichlet": Partition(
        of_labels(label_dirichlet),
        "every class is dealt out by a Dirichlet draw; redrawn until each client has min_size",
        "Li et al. 2022 (NIID-Bench)",
    ),
    "quantity_dirichlet": Partition(
        of_labels(quantity_dirichlet),
        "the sizes are a Dirichlet draw, the labels stay IID",
        "FedORION, the released code",
    ),
    "fedkf_dirichlet": Partition(
        of_labels(fedkf_dirichlet),
        "per-class Dirichlet in groups of clients, with a distinct dominant client per class",
        "FedKF, the released code",
    ),
    "iid_draw": Partition(
        of_labels(iid_draw), "all classes in equal parts, drawn with replacement", "DL-MH, IID"
    ),
    "niid1": Partition(of_labels(niid1), "two classes of ten per client", "DL-MH, NIID-1"),
    "niid2": Partition(of_labels(niid2), "five shared classes and one of its own", "DL-MH, NIID-2"),
    "niid3": Partition(of_labels(niid3), "four classes, each on two devices", "DL-MH, NIID-3"),
    **{
        f"flwr-{name.lower()}": Partition(
            of_labels(partial(_dealt, name)),
            f"{name}Partitioner{what}",
            "flwr-datasets (extra hub)",
            tuple(takes),
        )
        for name, (what, takes) in FLOWER.items()
    },
}


def rule(name: str) -> Partition:
    """The partition of a name: ours, or a plug-in's ``Partition`` or function.

    Raises ``ValueError``, one line: there is none of this name, or the plug-in is no partition.
    """
    if name in PARTITIONS:
        return PARTITIONS[name]
    found = plugins.find("partitions", name)
    if found is None:
        there = plugins.choices("partitions", name, PARTITIONS)
        raise ValueError(f"unknown data.partition {name!r}: choose from {there}")
    if not isinstance(found, Partition):
        if not callable(found):
            raise ValueError(
                f"partition {name!r} is of type {type(found).__name__}; it should be a function"
            )
        made = guarded(f"partition {name!r}", found)
        found = Partition(made, (inspect.getdoc(found) or "").partition("\n")[0], name)
    keys = {"num_classes", *Data.model_fields}
    if other := [option for option in found.options if option not in keys]:
        raise ValueError(f"partition {name!r}: [data] has no {other[0]!r} to give it")
    return found


def split(data: Data, dataset: Dataset, clients: int, seed: int) -> list[np.ndarray]:
    """Sorted int64 indices into the training samples for every client, by ``data.partition``.

    Drawn from the stream "partition" of ``data.seed``, or of ``seed`` where that is 0.
    Shares are disjoint except for ``niid*`` and ``iid_draw``, which draw with replacement. Raises
    ValueError for an unknown partition, fewer samples than clients, a rule that cannot be
    satisfied, or shares that are none.
    """
    partition = rule(data.partition)
    samples = len(dataset.y)
    if clients < 1:
        raise ValueError(f"{clients} clients: at least 1 is needed")
    if clients > samples and data.partition != OWN:
        raise ValueError(f"{clients} clients cannot share {samples} samples: some would have none")
    options = {
        name: dataset.num_classes if name == "num_classes" else getattr(data, name)
        for name in partition.options
    }
    shares = partition.function(dataset, clients, rng(data.seed or seed, "partition"), **options)
    with placed(partition.function):
        check_shares(data.partition, shares, samples, clients)
    return [np.sort(np.asarray(share)).astype(np.int64) for share in shares]


def local_train(n: int, test_fraction: float) -> int:
    """How many of a client's n distinct samples ``local_split`` leaves for training, at least."""
    return max(int((1 - test_fraction) * n + 1e-9), 1)


def local_split(
    indices: np.ndarray, test_fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """One client's (train, test) share: a shuffle, then the first ⌊(1 − fraction)·n⌋ train.

    Sorted. Copies of one sample (``niid*`` draws with replacement) stay on one side, so no sample
    is both trained on and tested. At least one distinct sample trains (FedKF, the released code).
    ``test_fraction`` is in [0, 1).
    """
    distinct, place = np.unique(indices, return_inverse=True)
    trained = np.zeros(len(distinct), bool)
    trained[rng.permutation(len(distinct))[: local_train(len(distinct), test_fraction)]] = True
    mask = trained[place]
    return np.sort(indices[mask]), np.sort(indices[~mask])
