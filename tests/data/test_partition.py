"""What every partition promises, what sets each one apart, and pictures of them."""

import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import partition
from common.data.dirichlet import fedkf_dirichlet, label_dirichlet, quantity_dirichlet
from common.data.embedded import toy
from common.data.partition import PARTITIONS, Partition, iid, local_split, split
from common.parse import defaults, parse
from common.seeds import rng
from common.settings.config import Data
from deploy.report.charts import bubbles

LABELS = np.arange(2000) % 10
DATA = toy(classes=10, shape=(1, 1, 1), train=2000, test=10)  # of which y is LABELS
OWNED = ("own", "natural")  # data belong to clients: tests/data/test_owners.py
FLOWER = [name for name in PARTITIONS if name.startswith("flwr-")]
RULES = [name for name in PARTITIONS if name not in (*OWNED, *FLOWER)]
SHARED = ("niid1", "niid2", "niid3", "iid_draw")
DISJOINT = [name for name in RULES if name not in SHARED]


def class_counts(labels: np.ndarray, shares: list[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds (clients, classes)."""
    return np.stack([np.bincount(labels[share], minlength=classes) for share in shares])


def classes_of(shares: list[np.ndarray], labels: np.ndarray = LABELS) -> list[list[int]]:
    return [np.unique(labels[share]).tolist() for share in shares]


@pytest.mark.parametrize("name", DISJOINT)
def test_every_sample_falls_to_exactly_one_client(options, name):
    every_class = options(partition=name, classes_per_client=10)
    for clients in (1, 2, 13, 20):
        shares = split(every_class, DATA, clients, seed=3)
        assert len(shares) == clients
        assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(2000)), clients


def test_the_flower_rules_are_what_their_names_say_and_repeat(options):
    pytest.importorskip("flwr_datasets")
    few = {"classes_per_client": 3, "alpha": 0.3, "min_size": 40}
    found = {
        name: [split(options(partition=name, **few), DATA, 4, seed) for seed in (1, 1, 2)]
        for name in FLOWER
    }
    for name, (first, again, other) in found.items():
        shares = [[share.tolist() for share in each] for each in (first, again, other)]
        assert shares[0] == shares[1] != shares[2], name
        rows = np.concatenate(first)
        assert len(np.unique(rows)) == len(rows) <= len(LABELS), name
        assert len(rows) > len(LABELS) - 10 or name == "flwr-pathological"
    sizes = {name: [len(share) for share in first] for name, (first, _, _) in found.items()}
    assert sizes["flwr-linear"] == [200, 400, 600, 800]
    assert sizes["flwr-square"][0] < 80 and sizes["flwr-exponential"][3] > 1200
    assert min(sizes["flwr-dirichlet"]) >= 40 and len(set(sizes["flwr-dirichlet"])) > 1
    assert sizes["flwr-shard"] == [498] * 4  # 12 equal shards; a rest of 8 is left out
    assert [len(held) for held in classes_of(found["flwr-pathological"][0])] == [3] * 4
    with pytest.raises(ValueError, match="'flwr-pathological': The specified `num_cla") as e:
        split(options(partition="flwr-pathological", classes_per_client=11), DATA, 4, 1)
    assert "\n" not in str(e.value)


def test_a_partition_of_a_missing_package_says_how_to_install_it(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    line = r"flwr_datasets is not .*: pip install 'fedmosaic\[hub\]'"
    with pytest.raises(ValueError, match=line):
        split(options(partition="flwr-linear"), DATA, 4, 1)


def test_a_partition_of_a_users_own_is_handed_the_data_set_and_checked(monkeypatch):
    seen = []

    def mine(dataset, clients, rng, *, alpha):
        seen.append((dataset, clients, alpha))
        return [np.arange(2)]

    monkeypatch.setitem(PARTITIONS, "mine", Partition(mine, "", ""))
    with pytest.raises(ValueError, match="'mine' gives 1 shares; it should be a list of 2 index"):
        split(Data(partition="mine", alpha=0.25), DATA, 2, 1)
    assert seen == [(DATA, 2, 0.25)]


def test_own_data_are_not_cut(options):
    for share in split(options(partition="own"), DATA, 3, seed=1):
        assert share.tolist() == list(range(len(LABELS)))
    few = DATA.trained_on(torch.arange(2))
    assert len(split(options(partition="own"), few, 3, seed=1)) == 3  # no need to share


@pytest.mark.parametrize("name", RULES)
def test_same_seed_same_partition_and_another_seed_another(options, name):
    def draw(run_seed, **more):
        five = options(partition=name, classes_per_client=5, **more)
        shares = split(five, DATA, 5, run_seed)
        return [share.tolist() for share in shares]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1, seed=7) == draw(2, seed=7) == draw(7)
    for share in split(options(partition=name), DATA, 10, seed=1):
        assert len(share) and np.array_equal(share, np.sort(share))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 99))
def test_iid_shares_differ_in_size_by_one_at_most(samples, clients, seed):
    shares = iid(np.zeros(samples, dtype=int), clients, rng(seed, "t"))
    sizes = [len(share) for share in shares]
    assert sum(sizes) == samples and max(sizes) - min(sizes) <= 1


def test_label_dirichlet_is_skewed_for_small_alpha_and_feeds_clients_below_their_fair_share():
    # One class after another: whoever holds N/n after class c gets nothing of class c + 1, so no
    # client can end above N/n plus one whole class.
    for seed in range(5):
        shares = label_dirichlet(LABELS, 10, rng(seed, "t"), alpha=0.1, min_size=25)
        assert min(map(len, shares)) >= 25
        shares = label_dirichlet(LABELS, 4, rng(seed, "t"), alpha=0.1, min_size=1)
        assert max(map(len, shares)) <= 500 + 200

    def largest_class_share(alpha):
        shares = label_dirichlet(LABELS, 10, rng(0, "t"), alpha=alpha, min_size=10)
        counts = class_counts(LABELS, shares, 10)
        return (counts.max(1) / counts.sum(1)).mean()

    assert largest_class_share(0.05) > 0.6
    assert largest_class_share(1000.0) < 0.15


def test_quantity_dirichlet_skews_sizes_as_published_but_not_labels():
    shares = quantity_dirichlet(LABELS, 6, rng(1, "t"), alpha=0.3)
    sizes = np.array([len(share) for share in shares])
    assert sizes.max() > 3 * np.median(sizes)
    largest = np.bincount(LABELS[shares[sizes.argmax()]], minlength=10) / sizes.max()
    assert np.abs(largest - 0.1).max() < 0.03
    sizes = [len(share) for share in quantity_dirichlet(LABELS, 30, rng(0, "t"), alpha=0.01)]
    assert sum(sizes) == 2000 and min(sizes) > 0 and sizes.count(6) > 10
    # 30 clients: 17 % on average for beta = 0.6, 43 % for 0.1 (of 200 draws, to 2 points)
    for beta, expected in ((0.6, 0.17), (0.1, 0.43)):
        draws = [quantity_dirichlet(LABELS, 30, rng(s, "q"), alpha=beta) for s in range(200)]
        largest = np.mean([max(map(len, shares)) / 2000 for shares in draws])
        assert largest == pytest.approx(expected, abs=0.025)


def test_fedkf_dirichlet_has_a_different_dominant_client_for_each_class():
    shares = fedkf_dirichlet(LABELS, 10, rng(2, "t"), alpha=0.01, num_classes=10)
    counts = class_counts(LABELS, shares, 10)
    assert sorted(counts.argmax(0).tolist()) == list(range(10))
    assert (counts.max(1) / counts.sum(1)).mean() > 0.9, "almost one class each"
    # the rule repeats in every group of as many clients as classes
    shares = fedkf_dirichlet(LABELS, 20, rng(2, "t"), alpha=0.1, num_classes=10)
    counts = class_counts(LABELS, shares, 10)
    for group in (counts[:10], counts[10:]):
        assert group.sum(0).tolist() == [100] * 10  # half of each class
        assert sorted(group.argmax(0).tolist()) == list(range(10))
    # with more classes than clients it goes round in cycles
    labels = np.arange(2600) % 26
    shares = fedkf_dirichlet(labels, 13, rng(2, "t"), alpha=0.1, num_classes=26)
    dominant = class_counts(labels, shares, 26).argmax(0)
    assert sorted(dominant[:13].tolist()) == sorted(dominant[13:].tolist()) == list(range(13))


def test_pathological_gives_few_classes_in_unequal_amounts_as_htfllib_does():
    two = split(Data(name="toy", partition="pathological"), DATA, 2, seed=1)
    assert classes_of(two) == [[0, 1], [2, 3]], "what nobody may have is left out"
    shares = split(Data(name="toy", partition="pathological", min_size=40), DATA, 20, seed=1)
    assert classes_of(shares) == [[2 * (k // 4), 2 * (k // 4) + 1] for k in range(20)]
    counts = class_counts(LABELS, shares, 10)
    assert counts.sum() == 2000
    for c in range(10):
        of_class = counts[:, c][counts[:, c] > 0]
        assert len(of_class) == 4  # ceil(20 * 2 / 10)
        assert all(5 <= n < 50 for n in of_class[:-1])  # max(50 / 10, 40 / 10) to 50 - 1
        assert of_class[-1] == 200 - of_class[:-1].sum()


def test_niid1_gives_device_k_the_classes_2k_and_2k_plus_1():
    shares = partition.niid1(LABELS, 6, rng(0, "t"), num_classes=10, per_client=100)
    assert classes_of(shares) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [0, 1]]
    assert class_counts(LABELS, shares, 10)[2, 4:6].tolist() == [50, 50]
    labels = np.arange(5000) % 100  # slots are blocks of ten classes when there are a hundred
    shares = partition.niid1(labels, 5, rng(0, "t"), num_classes=100, per_client=400)
    assert classes_of(shares, labels)[1] == list(range(20, 40))
    small = partition.niid1(np.arange(100) % 10, 5, rng(0, "t"), num_classes=10, per_client=500)
    assert [len(share) for share in small] == [500] * 5  # 250 of each class, from 10 samples
    equal = partition.niid1(LABELS, 5, rng(0, "t"), num_classes=10)
    assert len(equal[0]) == 400, "without a size an equal part of the pool"
    with pytest.raises(ValueError, match="needs at least 10 classes, the data set has 3"):
        partition.niid1(np.arange(30) % 3, 3, rng(0, "t"), num_classes=3)


def test_niid2_and_niid3_give_the_published_classes_and_iid_draw_gives_all():
    shares = partition.niid2(LABELS, 5, rng(0, "t"), num_classes=10, per_client=120)
    assert classes_of(shares) == [[0, 1, 2, 3, 4, 5 + k] for k in range(5)]
    assert set(class_counts(LABELS, shares, 10)[3].tolist()) == {0, 20}
    shares = partition.niid3(LABELS, 10, rng(0, "t"), num_classes=10, per_client=200)
    assert classes_of(shares)[:3] == [[0, 1, 2, 3], [0, 4, 5, 6], [1, 4, 7, 8]]
    held = class_counts(LABELS, shares, 10) > 0
    assert held[:5].sum(0).tolist() == [2] * 10 and held[:5].sum(1).tolist() == [4] * 5
    assert np.array_equal(held[:5], held[5:]), "it repeats for ten"
    shares = partition.iid_draw(LABELS, 3, rng(0, "t"), num_classes=10, per_client=200)
    assert [np.bincount(LABELS[share]).tolist() for share in shares] == [[20] * 10] * 3


def test_niid_adapted_to_four_devices_and_to_five_as_published():
    labels = np.arange(1200) % 12
    kwargs = {"num_classes": 12, "niid_scale": "adapt", "per_client": 120}
    rules = (partition.niid1, partition.niid2, partition.niid3)
    found = [classes_of(rule(labels, 4, rng(0, "t"), **kwargs), labels) for rule in rules]
    # six pairs (0,1) (0,2) (0,3) (1,2) (1,3) (2,3), two classes each; device 2 is in 2nd, 4th, 6th
    expected = [[3, 4, 5], [0, 1, 2, 3, 4, 5, 11], [2, 3, 6, 7, 10, 11]]
    assert [found[0][1], found[1][3], found[2][2]] == expected
    for rule in rules:  # five devices and ten classes: the published pattern
        plain = rule(LABELS, 5, rng(0, "t"), num_classes=10, niid_scale="period5")
        adapted = rule(LABELS, 5, rng(0, "t"), num_classes=10, niid_scale="adapt")
        assert all(np.array_equal(a, b) for a, b in zip(plain, adapted, strict=True))


@pytest.mark.parametrize(
    ("change", "clients", "message"),
    [
        (
            {"partition": "dirichlet"},
            5,
            "unknown data.partition 'dirichlet': choose from auto, iid",
        ),
        ({}, 0, "0 clients: at least 1"),
        ({}, 2001, "2001 clients cannot share 2000 samples"),
        ({"partition": "label_dirichlet", "min_size": 401}, 5, "needs 2005 samples"),
        ({"partition": "label_dirichlet", "alpha": 0.001, "min_size": 50}, 30, "gave 30 clients"),
        ({"partition": "quantity_dirichlet", "alpha": 0.01}, 500, "too few to give each of 500"),
        ({"partition": "niid1", "per_client": 1}, 5, "data.per-client = 1"),
        ({"partition": "niid1", "niid_scale": "adapt"}, 11, "10 classes cannot be cut into 11"),
        ({"partition": "niid3", "niid_scale": "adapt"}, 1, "cannot be cut into 0 blocks"),
        ({"partition": "pathological", "classes_per_client": 11}, 5, "classes-per-client = 11 is"),
        ({"partition": "pathological", "classes_per_client": 10}, 201, "class 0 has 200 samples"),
    ],
)
def test_an_impossible_partition_is_refused_in_one_line(options, change, clients, message):
    with pytest.raises(ValueError, match=message) as refusal:
        split(options(**change), DATA, clients, seed=1)
    assert "\n" not in str(refusal.value)


def test_local_split_takes_the_floor_and_keeps_copies_on_one_side():
    train, test = local_split(np.arange(100, 111), 0.2, rng(1, "local-split", 0))
    assert (len(train), len(test)) == (8, 3)  # floor(0.8 * 11) = 8
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(100, 111))
    again, _ = local_split(np.arange(100, 111), 0.2, rng(1, "local-split", 0))
    other, _ = local_split(np.arange(100, 111), 0.2, rng(1, "local-split", 1))
    assert np.array_equal(train, again) and not np.array_equal(train, other)
    for indices, fraction in ((np.arange(5), 0.0), (np.array([4]), 0.9), (np.array([4, 4]), 0.5)):
        train, test = local_split(indices, fraction, rng(1, "t"))
        assert np.array_equal(train, indices) and len(test) == 0
    train, test = local_split(np.repeat(np.arange(10), 3), 0.5, rng(1, "t"))
    assert len(train) == len(test) == 15
    assert not set(train.tolist()) & set(test.tolist())


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("data.alpha", 0.0, "greater than 0"),
        ("data.alpha", -1.0, "greater than 0"),
        ("data.alpha", float("nan"), "finite number"),
        ("data.niid-scale", "stretch", "'period5' or 'adapt'"),
        ("data.test-fraction", 1.0, "less than 1"),
        ("data.augment", "rotate", "'none', 'flip'"),
        ("data.standardize", "client", "'dataset' or 'batch'"),
        ("train.batch-size", 0, "greater than or equal to 1"),
    ],
)
def test_values_that_no_rule_is_made_for_are_refused_by_the_configuration(key, value, allowed):
    with pytest.raises(ValueError, match=f"{key} = .* is not allowed; it should be .*{allowed}"):
        parse(defaults() | {key: value})


def test_the_area_of_a_bubble_is_proportional_to_its_count_and_bubbles_do_not_touch():
    figure = bubbles(np.array([[1200, 0], [300, 600]]), ("cat", "dog"), "abc")
    axes = figure.axes[0]
    dots, key = axes.collections[:2]
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    areas = dots.get_sizes()
    assert (areas / areas[0]).tolist() == pytest.approx([1.0, 0.25, 0.5])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1,000", "250", "50"]
    assert key.get_sizes()[0] / areas[0] == pytest.approx(1000 / 1200)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    figure = bubbles(np.full((10, 10), 7), (), [""] * 100)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    diameter = axes.collections[0].get_sizes()[0] ** 0.5 * figure.dpi / 72
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    assert diameter < min(x1 - x0, y1 - y0)


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (200, 10)])
def test_any_federation_can_be_drawn_and_written(tmp_path, shape):
    bubbles(np.ones(shape, dtype=int), (), "").savefig(tmp_path / "partition.svg")
    assert (tmp_path / "partition.svg").read_text().startswith("<?xml")
