"""What each client trains and is tested on, and what the server is tested on.

| data.test | a client's test | the server's test |
|---|---|---|
| split | a share of its training samples | the data set's test samples |
| own | the data set's test samples that are its own | the same of all clients |
| merge | a share of its training and test samples | the test shares of all clients |

No client is tested on a sample that it trains on, and the server on none that anybody trains on;
a partition that draws with replacement may give one client's test sample to another for training.
With partition ``own``, the server has a data set of its own too, and is tested on that one's test
samples.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.data import check_test_owners, load, pool_of
from common.data.dataset import Dataset
from common.data.partition import local_split, local_train, split
from common.settings.config import NATURAL, OWN, Data
from common.training.seeds import rng

LEAST = 2  #: training samples of a client: one alone would break BatchNorm


class Share(NamedTuple):
    """One client's samples."""

    pool: Dataset  #: what all shares are cut from
    train: Tensor  #: rows of the pool's training samples
    test: Tensor  #: rows of the pool's training samples, or of its test samples
    of_test: bool  #: which of the two

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """x (n, C, H, W) and y (n,)."""
        return self.pool.x[self.train], self.pool.y[self.train]

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """x (n_test, C, H, W) and y (n_test,)."""
        pool = self.pool
        x, y = (pool.x_test, pool.y_test) if self.of_test else (pool.x, pool.y)
        return x[self.test], y[self.test]


def share(data: Data, k: int, clients: int, seed: int) -> Share:
    """Client k's share. ``data``: as this client has it; ``seed``: of the partition.

    Raises ``ValueError`` for a partition that cannot be made, or a client that cannot train.
    """
    pool = pool_of(data, seed)
    alone = data.partition == OWN
    mine = _partition(data, 1, seed)[0] if alone else _partition(data, clients, seed)[k]
    if data.test == "own":
        train, test = mine, _own_test(data, pool, k, mine)
    else:
        train, test = local_split(mine, data.test_fraction, rng(seed, "local-split", k))
    if len(train) < LEAST:
        remedy = ": raise data.alpha or data.min-size, or take fewer clients"
        raise ValueError(
            f"client {k} has {len(train)} training samples, at least {LEAST} are needed"
            + ("" if data.partition in (NATURAL, OWN) else remedy)
        )
    return Share(pool, torch.as_tensor(train), torch.as_tensor(test), data.test == "own")


def check_share(data: Data, k: int, clients: int, seed: int) -> None:
    """Raise ``ValueError`` as ``share`` does, without drawing a share that is large enough."""
    if data.partition != OWN and data.test != "own":
        mine = np.unique(_partition(data, clients, seed)[k])
        if local_train(len(mine), data.test_fraction) >= LEAST:
            return
    share(data, k, clients, seed)


def _own_test(data: Data, pool: Dataset, k: int, mine: np.ndarray) -> np.ndarray:
    """Rows of the test samples that are client k's, whose training samples are ``mine``."""
    if data.partition == OWN:
        return np.arange(len(pool.y_test))
    if pool.owner is None or not bool((pool.owner[torch.as_tensor(mine)] == k).all()):
        raise ValueError(
            f"data.test = 'own' is not allowed with data.partition = {data.partition!r}, which "
            "deals out other clients' samples; allowed: 'natural', 'own'"
        )
    check_test_owners(data, pool)
    assert pool.owner_test is not None
    return np.flatnonzero(pool.owner_test.numpy() == k)


@lru_cache(maxsize=4)
def _partition(data: Data, clients: int, seed: int) -> list[np.ndarray]:
    """Every client's samples; cached for a process of many clients."""
    return split(data, pool_of(data, seed), clients, seed)


def for_testing(data: Data, clients: int, seed: int) -> Dataset:
    """The data set as whoever tests the common models has it: with no test sample trained on.

    Raises ``ValueError`` if that needs the number of clients and it is not known.
    """
    if data.test != "merge" or data.partition == OWN:
        return load(data)
    return _untrained(data, clients, seed)


@lru_cache(maxsize=2)
def _untrained(data: Data, clients: int, seed: int) -> Dataset:
    if not clients:
        raise ValueError('data.test = "merge" needs clients, the size of the federation')
    shares = [share(data, k, clients, seed) for k in range(clients)]
    trained = torch.cat([each.train for each in shares])
    tested = torch.cat([each.test for each in shares]).unique()
    tested = tested[~torch.isin(tested, trained)]
    if not len(tested):
        raise ValueError(
            f"data.test = 'merge': with data.test-fraction = {data.test_fraction:g} no sample is "
            "left that nobody trains on"
        )
    pool = pool_of(data, seed)
    return replace(load(data), x_test=pool.x[tested], y_test=pool.y[tested], owner_test=None)
