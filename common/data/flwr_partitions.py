"""Partitions of flwr-datasets (the extra ``hub``), over the labels of any data set.

The samples are shuffled first, because most of these rules cut a data set as it lies. What is drawn
then comes from the partitioner's own generator, seeded by ours. The import takes every process some
seconds.
"""

import contextlib
import os
import warnings

import numpy as np

from common.extras import imported

LABEL, ROW = "label", "row"
RULES: dict[str, tuple[str, dict[str, str]]] = {
    "Dirichlet": ("", {"alpha": "alpha", "min_size": "min_partition_size"}),
    "Pathological": ("", {"classes_per_client": "num_classes_per_partition"}),
    "Shard": ("", {"classes_per_client": "num_shards_per_partition"}),
    "Linear": (": sizes 1, 2, 3, …", {}),
    "Square": (": sizes 1, 4, 9, …", {}),
    "Exponential": (": sizes e, e², e³, …", {}),
}
"""Partitioners, what is to be said of each, and what it takes: our names and its own."""


def dealt(
    name: str, labels: np.ndarray, clients: int, rng: np.random.Generator, **options: object
) -> list[np.ndarray]:
    """What the partitioner ``name`` makes of the labels (N,); one line for what it cannot make."""
    what = f"data.partition = 'flwr-{name.lower()}'"
    datasets, partitioners = imported("datasets"), imported("flwr_datasets.partitioner")
    given = {RULES[name][1][key]: value for key, value in options.items()}
    if options:
        given |= {"partition_by": LABEL, "seed": int(rng.integers(2**31))}
    rows = rng.permutation(len(labels))
    table = datasets.Dataset.from_dict({LABEL: labels[rows], ROW: rows})
    with (
        warnings.catch_warnings(),
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),  # its progress bars
    ):
        warnings.simplefilter("ignore")
        partitioner = getattr(partitioners, f"{name}Partitioner")(clients, **given)
        partitioner.dataset = table
        try:
            return [np.array(partitioner.load_partition(k)[ROW]) for k in range(clients)]
        except ValueError as error:
            raise ValueError(f"{what}: {' '.join(str(error).split())}") from error
