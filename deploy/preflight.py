"""Find every foreseeable mistake before anything starts."""

from __future__ import annotations

from collections.abc import Mapping

from common import device
from common.config import Config, Value, parse
from common.data import load
from common.data.partition import split
from common.data.public import divide
from common.fleet import check_fleet


def preflight(flat: Mapping[str, Value]) -> Config:
    """The parsed configuration of a run on this machine.

    Raises ``ValueError``, one line, for what cannot work: keys and values, data that are not there,
    architectures that cannot take them, a partition that cannot be made, a device that is missing.
    """
    config = parse(flat)
    device.choose(config.run.device)
    dataset = load(config.data)
    check_fleet(config, dataset.shape, dataset.num_classes)
    pool = divide(config.data, config.partition_seed).pool
    split(config.data, pool.y, pool.num_classes, config.run.clients, config.partition_seed)
    return config
