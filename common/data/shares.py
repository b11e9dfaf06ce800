"""Training and test samples of each client, and test samples of the server.

| data.test | a client's test samples | the server's test samples |
|---|---|---|
| split | a share of its training samples | the data set's test samples |
| own | the data set's test samples of this owner | the test samples of all owners |
| merge | a share of its training and test samples | the test shares of all clients |

No client tests on a sample of its training set, and the server tests on no client's training
sample. With a partition that draws with replacement, a test sample of one client can be a training
sample of another; it is no validation sample of any client, because settings that are chosen by
validation samples must not know test samples. With partition ``own``, the server loads its own data
set and uses its test samples.

``data.validation`` is a share of what the test samples of all clients leave: a client trains on
neither. With ``data.score-on = "validation"`` these samples replace the test samples of the client,
and those of all clients replace the server's. Such runs choose settings without a look at test
samples.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.data import LEAST, check_test_owners, divide, load, pool_of
from common.data.dataset import Dataset, image_digests
from common.data.kinds import TOKENS, of_samples
from common.data.partition import local_split, local_train, split
from common.seeds import rng
from common.settings.config import OWN, Data


class Share(NamedTuple):
    """One client's samples."""

    pool: Dataset  #: data set that all shares are drawn from
    train: Tensor  #: rows of the pool's training samples
    test: Tensor  #: rows of the pool's training samples, or of its test samples
    of_test: bool  #: whether ``test`` refers to the pool's test samples

    @property
    def train_set(self) -> tuple[Tensor, Tensor]:
        """Training samples x (n, C, ...) and y (n,)."""
        return self.pool.x[self.train], self.pool.y[self.train]

    @property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """Test samples x (n_test, C, ...) and y (n_test,)."""
        pool = self.pool
        x, y = (pool.x_test, pool.y_test) if self.of_test else (pool.x, pool.y)
        return x[self.test], y[self.test]


def share(data: Data, k: int, clients: int, seed: int) -> Share:
    """Return client k's share. ``data``: this client's settings; ``seed``: seed of the partition.

    Raises ``ValueError`` for an impossible partition or a client with too few training samples.
    """
    pool = pool_of(data, seed)
    alone = data.partition == OWN
    rows = _partition(data, 1, seed)[0] if alone else _partition(data, clients, seed)[k]
    if data.test == "own":
        train, test = rows, _own_test(data, pool, k, rows)
    else:
        train, test = local_split(rows, data.test_fraction, rng(seed, "local-split", k))
    of_test = data.test == "own"
    if data.validation:
        train, validation = _validated(data, train, k, clients, seed)
        if data.score_on == "validation":
            test, of_test = validation, False
    if len(train) < LEAST:
        remedy = ": raise data.alpha or data.min-size, or take fewer clients"
        remedy += " or a smaller data.validation" if data.validation else ""
        by_owner = data.by_owner and pool.owner is not None
        if by_owner or alone:
            natural = "; data.small-owners = 'leave-out' leaves such owners out"
            remedy = natural if by_owner else ""
        raise ValueError(
            f"client {k} has {len(train)} training samples, at least {LEAST} are needed{remedy}"
        )
    return Share(pool, torch.as_tensor(train), torch.as_tensor(test), of_test)


def _validated(
    data: Data, train: np.ndarray, k: int, clients: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows that client k does not test on into rows for training and for validation.

    Rows that another client tests on are for training only, unless ``data.validation-from`` is
    ``any``.
    """
    draw = rng(seed, "validation", k)
    if data.validation_from == "any" or data.partition == OWN or data.test == "own":
        return local_split(train, data.validation, draw)
    tested = np.isin(train, _tested(data, clients, seed, pool_of(data, seed)))
    if tested.all():
        return train, train[:0]
    rows, validation = local_split(train[~tested], data.validation, draw)
    return np.sort(np.concatenate([rows, train[tested]])), validation


@lru_cache(maxsize=4)
def _tested(data: Data, clients: int, seed: int, pool: Dataset) -> np.ndarray:
    """Return the rows that some client tests on and another one has too; empty if there are none.

    Only partitions that draw with replacement have such rows. ``pool``: of whose rows they are, for
    the cache.
    """
    shares = [np.unique(rows) for rows in _partition(data, clients, seed)]
    rows, counts = np.unique(np.concatenate(shares), return_counts=True)
    if not (twice := rows[counts > 1]).size:
        return twice
    tests = [
        local_split(rows, data.test_fraction, rng(seed, "local-split", k))[1]
        for k, rows in enumerate(_partition(data, clients, seed))
    ]
    return np.intersect1d(np.concatenate(tests), twice)


def check_share(data: Data, k: int, clients: int, seed: int) -> None:
    """Raise ``ValueError`` as ``share`` does, without a draw if the share is large enough."""
    if data.partition != OWN and data.test != "own":
        rows = np.unique(_partition(data, clients, seed)[k])
        n = local_train(len(rows), data.test_fraction)
        if local_train(n, data.validation) >= LEAST:
            return
    share(data, k, clients, seed)


def _own_test(data: Data, pool: Dataset, k: int, train: np.ndarray) -> np.ndarray:
    """Return the rows of owner k's test samples; ``train``: client k's training rows."""
    if data.partition == OWN:
        return np.arange(len(pool.y_test))
    if pool.owner is None or not bool((pool.owner[torch.as_tensor(train)] == k).all()):
        raise ValueError(
            f"data.test = 'own' is not allowed with data.partition = {data.partition!r}, which "
            "ignores the owners of samples; allowed: 'natural', 'own'"
        )
    check_test_owners(data, pool)
    assert pool.owner_test is not None
    return np.flatnonzero(pool.owner_test.numpy() == k)


def _partition(data: Data, clients: int, seed: int) -> list[np.ndarray]:
    """Return every client's rows; cached for a process that runs many clients."""
    return _rows(data, pool_of(data, seed), clients, seed)


@lru_cache(maxsize=4)
def _rows(data: Data, pool: Dataset, clients: int, seed: int) -> list[np.ndarray]:
    return split(data, pool, clients, seed)


def for_testing(data: Data, clients: int, seed: int) -> Dataset:
    """Return the data set for scores of global models: no scored sample is in a training share.

    Raises ``ValueError`` if ``clients`` is necessary for this and 0.
    """
    if (data.test != "merge" and data.score_on == "test") or data.partition == OWN:
        return load(data)
    return _untrained(data, clients, seed)


@lru_cache(maxsize=2)
def _untrained(data: Data, clients: int, seed: int) -> Dataset:
    by_test = data.score_on == "test"
    if not clients:
        setting = 'test = "merge"' if by_test else 'score-on = "validation"'
        raise ValueError(f"data.{setting} needs clients, the size of the federation")
    shares = [share(data, k, clients, seed) for k in range(clients)]
    train = torch.cat([one.train for one in shares])
    test = torch.cat([one.test for one in shares]).unique()
    test = test[~torch.isin(test, train)]
    if not len(test):
        key, value = (
            ("test-fraction", data.test_fraction) if by_test else ("validation", data.validation)
        )
        raise ValueError(
            f"data.{key} = {value:g}: no sample is outside all training sets; raise data.{key}"
        )
    pool = pool_of(data, seed)
    return replace(load(data), x_test=pool.x[test], y_test=pool.y[test], owner_test=None)


def check_public(data: Data, images: Tensor, who: str, seed: int) -> None:
    """Raise ``ValueError`` if test ``images`` of ``who`` are in a public set from elsewhere.

    Predictions and labels of public images would then give away test samples. Training samples may
    be public. A share of the training set (``data.public``) needs no check: it is disjoint from all
    test samples by index. Of texts, one or 1 % may be in the public set: short ones are equal by
    chance.
    """
    if not data.elsewhere:
        return
    public = _digests_of(divide(data, seed).public)
    overlap = sum(digest in public for digest in image_digests(images))
    noun, by_chance = "images", 0
    if of_samples(images) is TOKENS:
        noun, by_chance = "texts", max(1, len(images) // 100)
    if overlap > by_chance:
        value = data.public_name if data.elsewhere == "public-name" else data.public_dir
        raise ValueError(
            f"data.{data.elsewhere} = {value!r} is not allowed: {overlap} of the {len(images)} "
            f"test {noun} of {who} are in the public set ({100 * overlap / len(images):.1f} %); "
            "choose another data set, or a share of the training set with data.public"
        )


def check_public_tests(data: Data, clients: int, seed: int) -> None:
    """Raise ``ValueError`` as ``check_public`` does, for the server and each of ``clients``.

    With partition ``own`` clients have other data, so each client checks its own.
    """
    if not data.elsewhere:
        return
    check_public(data, for_testing(data, clients, seed).x_test, "the server", seed)
    if data.partition != OWN:
        for k in range(clients):
            images, _ = share(data, k, clients, seed).test_set
            check_public(data, images, f"client {k}", seed)


@lru_cache(maxsize=2)
def _digests_of(public: Tensor | None) -> frozenset[bytes]:
    """Return the digests of the public images; computed once in a process."""
    return frozenset(() if public is None else image_digests(public))
