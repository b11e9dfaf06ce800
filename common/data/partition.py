"""Partitions of the training samples over clients.

A partition is a pure function of a data set and a random generator that returns one index array per
client. ``split`` is the entry point: it looks up the partition by name, passes its options and a
generator, and checks the result. Most rules need only the labels (N,).

NIID-1, NIID-2 and NIID-3 are DL-MH's fixed class patterns over devices, drawn with replacement, for
10 classes and 5 devices. ``niid_scale`` selects the rule for other numbers. "period5" repeats the
patterns: device k has pattern k mod 5, and slot j of ten is the j-th tenth of the classes. "adapt"
extends the rule to the number of devices.
"""

import contextlib
import inspect
import math
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
from common.data.external import check_shares, guarded, located
from common.extras import imported
from common.seeds import rng
from common.settings import plugins
from common.settings.config import AUTO, NATURAL, OWN, Data

SLOTS = 10  #: number of class slots in DL-MH's patterns
PERIOD = 5  #: number of devices in DL-MH's patterns

Pattern = Callable[[int, int], list[list[int]]]  #: (devices, slots) to the slots of each device
Rule = Callable[..., list[np.ndarray]]  #: (data set, clients, rng, options) to the shares


@final
@dataclass(frozen=True)
class Partition:
    """Partition rule ``function(dataset, clients, rng, **options)``, description and source."""

    function: Rule
    description: str
    source: str
    takes: Sequence[str] = ()  #: options that are not in the rule's signature

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the rule's options: settings of [data], and the number of classes."""
        parameters = inspect.signature(self.function).parameters.values()
        return (*self.takes, *(p.name for p in parameters if p.kind is p.KEYWORD_ONLY))


def of_labels(rule: Rule, *, by_class: bool = True) -> Rule:
    """Convert a rule for classes (N,) into a rule for data sets with one class a sample.

    ``by_class``: false for a rule that reads N alone and divides data sets of every objective.
    """

    @wraps(rule)
    def partition(
        dataset: Dataset, clients: int, rng: np.random.Generator, **options: object
    ) -> list[np.ndarray]:
        if by_class and dataset.objective != "classes":
            raise ValueError(
                f"this partition divides by class, but data set {dataset.name!r} has "
                f"{dataset.objective}; set data.partition to 'auto', 'natural' or 'iid'"
            )
        return rule(dataset.y.numpy(), clients, rng, **options)

    return partition


def natural(dataset: Dataset, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the samples of owner k as the share of client k."""
    if dataset.owner is None:
        raise ValueError(
            f"data.partition = {NATURAL!r}: data set {dataset.name!r} has no owners of samples; "
            "choose another partition"
        )
    if dataset.owners != clients:
        raise ValueError(
            f"data.partition = {NATURAL!r}: the samples of {dataset.name!r} belong to "
            f"{dataset.owners} owners, but clients = {clients}; clients = 0 sets one per owner"
        )
    return [np.flatnonzero(dataset.owner.numpy() == k) for k in range(clients)]


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return random disjoint shares whose sizes differ by one at most."""
    return [np.sort(share) for share in np.array_split(rng.permutation(len(labels)), clients)]


def own(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return all samples as every client's share: each client loads its own data set."""
    return [np.arange(len(labels))] * clients


def _with_replacement(pattern: Pattern) -> Rule:
    """Return the partition that draws samples with replacement according to ``pattern``."""

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


@_with_replacement
def niid1(devices: int, slots: int) -> list[list[int]]:
    """Return classes {2k, 2k + 1} in equal parts for device k, no class on two of five devices.

    adapt: the classes in blocks of num_classes / clients.
    Each client draws ``per_client`` samples (0: N // clients) with replacement from its classes. A
    share can therefore contain a sample twice, and two devices can share samples. DL-MH, NIID-1.
    """
    return _blocks(range(slots), devices)


@_with_replacement
def niid2(devices: int, slots: int) -> list[list[int]]:
    """Return classes {0, .., 4} and 5 + k for device k, each with 1/6 of its samples.

    adapt: the first half of the classes on all devices, the others in one block per device.
    Drawn as in :func:`niid1`. DL-MH, NIID-2.
    """
    shared = range(slots // 2)
    return [[*shared, *block] for block in _blocks(range(slots // 2, slots), devices)]


@_with_replacement
def niid3(devices: int, slots: int) -> list[list[int]]:
    """Return four classes in equal parts for each device, each class on exactly two devices.

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
    """Return all classes in equal parts for every device, drawn as in :func:`niid1`. DL-MH, IID."""
    return _draw(labels, rng, per_client, [list(range(num_classes))] * clients)


def _blocks(items: range, count: int) -> list[list[int]]:
    """Return runs of consecutive items, none empty, whose lengths differ by one at most."""
    if not 1 <= count <= len(items):
        raise ValueError(
            f"data.niid-scale = 'adapt': {len(items)} classes cannot be cut into {count} blocks: "
            "take fewer clients (niid3 needs two) or set data.niid-scale = 'period5'"
        )
    return [block.tolist() for block in np.array_split(np.array(items), count)]


def _owned(pattern: Pattern, clients: int, num_classes: int, scale: str) -> list[list[int]]:
    """Return the classes of every client."""
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
        counts = [len(run) for run in np.array_split(np.arange(size), len(classes))]
        chosen = [rng.choice(members[c], n) for c, n in zip(classes, counts, strict=True)]
        shares.append(np.sort(np.concatenate(chosen)))
    return shares


def pathological(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    num_classes: int,
    classes_per_client: int,
    min_size: int,
) -> list[np.ndarray]:
    """Return disjoint shares of ``classes_per_client`` classes in unequal amounts.

    Class by class, the first ⌈clients · classes_per_client / num_classes⌉ clients that lack a class
    receive it. Each but the last of them receives a uniform draw from ⌊max(n/10, s/num_classes)⌋ to
    ⌊n⌋ − 1 samples, the last the remainder. n is their mean, s = min(min_size, N / (2 · clients)).
    (HtFLlib and PFLlib, the released code; there ``min_size`` is the batch size over the test
    share. Classes that no client may have any more are left out.)

    Raises ``ValueError`` for more classes than there are, and for a class with too few samples.
    """
    if classes_per_client > num_classes:
        raise ValueError(
            f"data.classes-per-client = {classes_per_client} is not allowed: the data set has "
            f"{num_classes} classes"
        )
    some = math.ceil(clients * classes_per_client / num_classes)
    least = int(min(min_size, len(labels) / clients / 2)) / num_classes
    needed, shares = (
        np.full(clients, classes_per_client),
        [list[np.ndarray]() for _ in range(clients)],
    )
    for c in range(num_classes):
        owners = np.flatnonzero(needed)[:some]
        if not len(owners):
            break
        members = rng.permutation(np.flatnonzero(labels == c))
        mean = len(members) / len(owners)
        low, high = int(max(mean / 10, least)), int(mean)
        if low >= high and len(owners) > 1:
            raise ValueError(
                f"data.partition = 'pathological': class {c} has {len(members)} samples for "
                f"{len(owners)} clients, too few for data.min-size = {min_size}"
            )
        amounts = rng.integers(low, high, len(owners) - 1)
        for k, indices in zip(owners, np.split(members, np.cumsum(amounts)), strict=True):
            shares[k].append(indices)
        needed[owners] -= 1
    return [np.sort(np.concatenate(one)) for one in shares]


FLOWER: dict[str, tuple[str, dict[str, str]]] = {
    "Dirichlet": ("", {"alpha": "alpha", "min_size": "min_partition_size"}),
    "Pathological": ("", {"classes_per_client": "num_classes_per_partition"}),
    "Shard": ("", {"classes_per_client": "num_shards_per_partition"}),
    "Linear": (": sizes 1, 2, 3, …", {}),
    "Square": (": sizes 1, 4, 9, …", {}),
    "Exponential": (": sizes e, e², e³, …", {}),
}
"""Partitioners of flwr-datasets: a suffix of the description, and our option names to theirs."""


def _flower_shares(
    name: str, labels: np.ndarray, clients: int, rng: np.random.Generator, **options: object
) -> list[np.ndarray]:
    """Return the shares of labels (N,) by a partitioner of flwr-datasets (extra ``hub``).

    The samples are shuffled first, because most of these rules keep the order of the data set. The
    partitioner then draws from its own generator, seeded by ours. The import takes each process
    some seconds. Raises ``ValueError``, one line, for an impossible partition.
    """
    setting = f"data.partition = 'flwr-{name.lower()}'"
    datasets, partitioners = imported("datasets"), imported("flwr_datasets.partitioner")
    arguments = {FLOWER[name][1][key]: value for key, value in options.items()}
    if options:
        arguments |= {"partition_by": "label", "seed": int(rng.integers(2**31))}
    rows = rng.permutation(len(labels))
    table = datasets.Dataset.from_dict({"label": labels[rows], "row": rows})
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w", encoding="utf-8") as null,
        contextlib.redirect_stderr(null),  # progress bars
    ):
        warnings.simplefilter("ignore")
        partitioner = getattr(partitioners, f"{name}Partitioner")(clients, **arguments)
        partitioner.dataset = table
        try:
            return [np.array(partitioner.load_partition(k)["row"]) for k in range(clients)]
        except ValueError as error:
            raise ValueError(f"{setting}: {' '.join(str(error).split())}") from error


def automatic(
    dataset: Dataset, clients: int, rng: np.random.Generator, **options: object
) -> list[np.ndarray]:
    """Return the samples of owner k as share k if samples have owners, else random shares."""
    return (of_labels(iid, by_class=False) if dataset.owner is None else natural)(
        dataset, clients, rng
    )


PARTITIONS: dict[str, Partition] = {
    AUTO: Partition(automatic, "by owner if samples have owners, else equal random shares", ""),
    "iid": Partition(of_labels(iid, by_class=False), "equal random shares", "McMahan et al. 2017"),
    NATURAL: Partition(
        natural, "each client is one owner of samples in the data set", "LEAF, PFLlib"
    ),
    OWN: Partition(
        of_labels(own, by_class=False),
        "each client loads its own data set, without a partition",
        "deployments",
    ),
    "label_dirichlet": Partition(
        of_labels(label_dirichlet),
        "Dirichlet proportions for every class, redrawn until each client has min_size samples",
        "Li et al. 2022 (NIID-Bench)",
    ),
    "quantity_dirichlet": Partition(
        of_labels(quantity_dirichlet, by_class=False),
        "Dirichlet sizes with IID labels",
        "FedORION, the released code",
    ),
    "fedkf_dirichlet": Partition(
        of_labels(fedkf_dirichlet),
        "per-class Dirichlet in groups of clients, with a distinct dominant client per class",
        "FedKF, the released code",
    ),
    "pathological": Partition(
        of_labels(pathological),
        "a few classes for each client, in unequal amounts",
        "HtFLlib and PFLlib, the released code",
    ),
    "iid_draw": Partition(
        of_labels(iid_draw), "all classes in equal parts, drawn with replacement", "DL-MH, IID"
    ),
    "niid1": Partition(of_labels(niid1), "two classes of ten per client", "DL-MH, NIID-1"),
    "niid2": Partition(of_labels(niid2), "five shared classes and one of its own", "DL-MH, NIID-2"),
    "niid3": Partition(of_labels(niid3), "four classes, each on two devices", "DL-MH, NIID-3"),
    **{
        f"flwr-{name.lower()}": Partition(
            of_labels(partial(_flower_shares, name)),
            f"{name}Partitioner{suffix}",
            "flwr-datasets (extra hub)",
            tuple(takes),
        )
        for name, (suffix, takes) in FLOWER.items()
    },
}


def rule(name: str) -> Partition:
    """Return the partition ``name``, from ``PARTITIONS`` or a plug-in (``Partition`` or function).

    Raises ``ValueError``, one line, for an unknown name or a plug-in that is not a partition.
    """
    if name in PARTITIONS:
        return PARTITIONS[name]
    what = f"unknown data.partition {name!r}"
    plugin = plugins.required("partitions", name, PARTITIONS, what)
    if not isinstance(plugin, Partition):
        if not callable(plugin):
            raise ValueError(
                f"partition {name!r} is of type {type(plugin).__name__}; it should be a function"
            )
        description = (inspect.getdoc(plugin) or "").partition("\n")[0]
        plugin = Partition(guarded(f"partition {name!r}", plugin), description, name)
    keys = {"num_classes", *Data.model_fields}
    if unknown := [option for option in plugin.options if option not in keys]:
        raise ValueError(f"partition {name!r}: its option {unknown[0]!r} is no key of [data]")
    return plugin


def split(data: Data, dataset: Dataset, clients: int, seed: int) -> list[np.ndarray]:
    """Return every client's sorted int64 indices of training samples, by ``data.partition``.

    The draw uses the stream "partition" of ``data.seed``, or of ``seed`` if that is 0.
    Shares are disjoint except for ``niid*`` and ``iid_draw``, which draw with replacement. Raises
    ``ValueError`` for an unknown partition, fewer samples than clients, a rule that cannot be
    satisfied, or invalid shares.
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
    with located(partition.function):
        check_shares(data.partition, shares, samples, clients)
    return [np.sort(np.asarray(share)).astype(np.int64) for share in shares]


def local_train(n: int, test_fraction: float) -> int:
    """Return how many of n distinct samples ``local_split`` uses for training."""
    return max(int((1 - test_fraction) * n + 1e-9), 1)


def local_split(
    indices: np.ndarray, test_fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Split one client's indices at random into sorted (train, test) indices.

    The first ⌊(1 − fraction)·n⌋ distinct samples of a shuffle are for training, at least one (as in
    FedKF's released code). Copies of a sample (``niid*`` draws with replacement) stay in one part,
    so that no sample is both trained on and tested. ``test_fraction`` is in [0, 1).
    """
    distinct, position = np.unique(indices, return_inverse=True)
    trained = np.zeros(len(distinct), bool)
    trained[rng.permutation(len(distinct))[: local_train(len(distinct), test_fraction)]] = True
    mask = trained[position]
    return np.sort(indices[mask]), np.sort(indices[~mask])
