"""What the data set holds, how it is cut, resized, counted and recognised."""

import numpy as np
import pytest
import torch

from common.data import DATASETS, embedded, load
from common.data.dataset import channel_statistics, fingerprint, holdout, resize, stratified
from common.data.embedded import points
from common.seeds import rng


@pytest.mark.parametrize("name", ["digits", "toy", "points"])
def test_an_embedded_set_is_what_its_entry_says(options, name):
    dataset, source = load(options(name=name)), DATASETS[name]
    assert (dataset.name, dataset.shape) == (name, source.shape)
    assert dataset.num_classes == source.classes
    assert len(dataset.mean) == len(dataset.std) == dataset.shape[0]
    assert sorted(dataset.y.unique().tolist()) == list(range(dataset.num_classes))
    assert sorted(dataset.y_test.unique().tolist()) == list(range(dataset.num_classes))


def test_digits_are_bytes_cut_four_to_one_and_read_without_scikit_learn(options, monkeypatch):
    dataset = load(options(name="digits"))
    assert len(dataset.x) + len(dataset.x_test) == 1797
    assert dataset.x.dtype == torch.uint8
    # 0..16 in steps of 255/16: 8 becomes 127.5, rounded to even
    assert set(dataset.x.unique().tolist()) <= {round(v * 255 / 16) for v in range(17)}
    assert int(dataset.x.max()) == 255
    counts = torch.bincount(dataset.y) + torch.bincount(dataset.y_test)
    assert (torch.bincount(dataset.y_test) / counts - 0.2).abs().max() < 0.005
    direct = embedded._table()
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    assert direct.shape == (1797, 65) and np.array_equal(direct, embedded._table())


def test_points_are_separated_by_their_neighbours_but_not_by_a_line():
    dataset = points()
    assert dataset.x.dtype == torch.float32 and dataset.x.abs().max() <= 1.2
    distance = torch.cdist(dataset.x_test.flatten(1), dataset.x.flatten(1))
    nearest = dataset.y[distance.argmin(1)]
    assert (nearest == dataset.y_test).float().mean() > 0.85
    inputs = torch.cat([dataset.x.flatten(1), torch.ones(len(dataset.x), 1)], 1)
    targets = torch.nn.functional.one_hot(dataset.y).float()
    weights = torch.linalg.lstsq(inputs, targets).solution
    assert ((inputs @ weights).argmax(1) == dataset.y).float().mean() < 0.75


def test_one_data_set_is_loaded_once_and_an_unknown_name_lists_the_known_ones(options):
    assert load(options(partition="iid")) is load(options(partition="niid1", alpha=9.0))
    assert load(options()) is not load(options(samples=30))
    with pytest.raises(ValueError, match=r"unknown data.name 'minst': choose from digits, .*mnist"):
        load(options(name="minst"))


def test_samples_are_a_stratified_subset_by_the_seed_and_can_be_resized(options):
    first = load(options(name="digits", samples=100, test_samples=50))
    assert len(first.x) == len(first.y) == 100 and len(first.x_test) == 50
    assert torch.bincount(first.y).min() >= 9 and torch.bincount(first.y_test).min() >= 4
    second = load(options(name="digits", samples=100, test_samples=50, seed=1))
    assert not torch.equal(first.x, second.x)
    assert first.mean == load(options(name="digits")).mean
    assert resize(torch.full((3, 1, 8, 8), 77, dtype=torch.uint8), 16).unique().tolist() == [77]
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2 * 255
    out = resize(board.to(torch.uint8)[None, None], 4)
    assert (out[..., 1:-1, 1:-1].int() - 127).abs().max() <= 1
    dataset = load(options(name="toy", image_size=16))
    assert dataset.shape == (1, 16, 16) and dataset.x.dtype == torch.uint8
    with pytest.raises(ValueError, match="floats, signals, tables and texts cannot be resized"):
        load(options(name="points", image_size=8))


def test_stratified_and_holdout_leave_no_class_empty():
    y = torch.tensor([0] * 6 + [1] * 3 + [2])
    # 5 of 10: 3, 1.5, 0.5 -> 3, 1, 1 (no class falls to nothing)
    chosen = stratified(y, 5, rng(0, "t"))
    assert torch.bincount(y[chosen]).tolist() == [3, 1, 1]
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    rare = torch.tensor([0] * 8 + [1] + [2])
    for samples in range(3, 11):
        chosen = stratified(rare, samples, rng(0, "t"))
        assert len(chosen) == samples and rare[chosen].unique().tolist() == [0, 1, 2]
    for samples, line in ((2, "2 samples cannot hold 3 classes"), (11, "only 10")):
        with pytest.raises(ValueError, match=line):
            stratified(y, samples, rng(0, "t"))
    y = torch.tensor([0] * 10 + [1] * 2 + [2])
    train, test = holdout(y, 0.2, rng(0, "t"))
    assert torch.bincount(y[train]).tolist() == [8, 1, 1]
    assert torch.bincount(y[test]).tolist() == [2, 1]
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(13))


def test_statistics_and_fingerprint_of_a_tensor():
    x = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert channel_statistics(x) == ((0.5,), (0.5,))
    assert channel_statistics(x[:1]) == ((0.0,), (1.0,))
    x = torch.arange(6, dtype=torch.uint8)
    same = fingerprint(x)
    assert same == fingerprint(x.clone()) and len(same) == 64
    assert same == fingerprint(torch.stack([x, x], 1)[:, 0])  # not contiguous
    others = [x.view(2, 3), x.to(torch.int8), x.flip(0)]
    assert len({same, *map(fingerprint, others)}) == 4
    assert fingerprint(torch.tensor(1.5)) != fingerprint(torch.tensor(1.25))
