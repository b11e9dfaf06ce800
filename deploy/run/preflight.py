"""Find every foreseeable mistake before anything starts."""

from __future__ import annotations

from collections.abc import Mapping

from common import device, fleet
from common.config import Config, Value
from common.data import DATASETS, load
from common.data.partition import PARTITIONS, split
from common.data.public import divide
from common.parse import parse
from common.task import Task


def check_names(config: Config) -> None:
    """Raise a one-line ``ValueError`` for an unknown architecture, data set or partition.

    All that can be seen without the data, which may lie on other machines.
    """
    fleet.check_names(config)
    names = (("name", config.data.name, DATASETS), ("partition", config.data.partition, PARTITIONS))
    for key, name, known in names:
        if name not in known:
            raise ValueError(f"unknown data.{key} {name!r}: choose from {', '.join(known)}")


def preflight(flat: Mapping[str, Value]) -> Config:
    """The parsed configuration of a run on this machine.

    Raises ``ValueError``, one line, for what cannot work: keys and values, data that are not there,
    architectures that cannot take them, a partition that cannot be made, a device that is missing.
    """
    config = parse(flat, every=True)
    check_names(config)
    chosen = device.choose(config.run.device)
    fleet.check_fleet(Task.of(config, load(config.data), chosen))
    pool = divide(config.data, config.partition_seed).pool
    split(config.data, pool.y, pool.num_classes, config.run.clients, config.partition_seed)
    return config
