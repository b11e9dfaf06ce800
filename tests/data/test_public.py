"""The public set and the pool."""

from __future__ import annotations

import pytest
import torch

from common.data import set_aside
from common.data.embedded import toy


def test_pool_and_public_set_share_the_training_set():
    dataset = toy()
    pool, public, _ = set_aside(dataset, 0.8, seed=1)
    assert len(public) == 288 and len(pool.x) == len(pool.y) == 72
    rows = [tuple(image.flatten().tolist()) for image in torch.cat([pool.x, public])]
    assert sorted(rows) == sorted(tuple(image.flatten().tolist()) for image in dataset.x)
    assert pool.x_test is dataset.x_test


def test_pool_labels_stay_with_their_images():
    dataset = toy()
    pool, *_ = set_aside(dataset, 0.5, seed=1)
    label = {tuple(x.flatten().tolist()): int(y) for x, y in zip(dataset.x, dataset.y, strict=True)}
    found = [label[tuple(image.flatten().tolist())] for image in pool.x]
    assert found == pool.y.tolist()


def test_the_public_set_is_the_same_for_one_seed_and_another_for_the_next():
    dataset = toy()
    assert torch.equal(set_aside(dataset, 0.3, 1)[1], set_aside(dataset, 0.3, 1)[1])
    assert not torch.equal(set_aside(dataset, 0.3, 1)[1], set_aside(dataset, 0.3, 2)[1])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 0.001])
def test_a_public_set_that_is_empty_or_everything_is_refused(fraction):
    with pytest.raises(ValueError, match="1 to 359 are possible"):
        set_aside(toy(), fraction, 1)
