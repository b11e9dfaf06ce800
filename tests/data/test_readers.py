"""Data sets as others keep them: IDX files, LEAF, and those of torchvision."""

import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.data import Dataset, load
from common.data.published import FASHION_MNIST, read_idx
from common.settings.config import Data
from tests.support.data_files import idx, write_idx


def test_mnist_and_upright_emnist_are_read_as_torchvision_keeps_them_or_gzipped(options, tmp_path):
    images = write_idx(tmp_path / "MNIST" / "raw", "train", "t10k", np.arange(20) % 10)
    dataset = load(options(name="mnist", dir=str(tmp_path)))
    assert dataset.shape == (1, 28, 28) and dataset.num_classes == 10
    assert torch.equal(dataset.x[:, 0], torch.from_numpy(images))
    assert dataset.y_test.tolist() == [*range(10)] * 2
    assert (dataset.mean, dataset.std) == ((0.1307,), (0.3081,))
    write_idx(tmp_path / "here", "train", "t10k", np.arange(20) % 10, packed=True)
    dataset = load(options(name="fashion-mnist", dir=str(tmp_path / "here"), image_size=32))
    assert dataset.shape == (1, 32, 32) and dataset.classes[9] == "Ankle boot"
    stems = ("emnist-letters-train", "emnist-letters-test")
    write_idx(tmp_path / "EMNIST" / "raw", *stems, np.arange(52) % 26 + 1)
    dataset = load(options(name="emnist-letters", dir=str(tmp_path)))
    assert dataset.y.tolist() == [*range(26)] * 2
    assert dataset.x[:, 0, 2, 1].tolist() == list(range(1, 53))  # row and column exchanged
    assert dataset.classes[0] == "a" and len(dataset.classes) == 26


@pytest.mark.skipif(
    not Path(FASHION_MNIST.system).is_dir(),
    reason="Fashion-MNIST is not installed (Debian package dataset-fashion-mnist)",
)
def test_the_debian_package_of_fashion_mnist_is_found_by_itself(options):
    dataset = load(options(name="fashion-mnist"))
    assert dataset.x.shape == (60_000, 1, 28, 28) and dataset.x_test.shape == (10_000, 1, 28, 28)
    assert torch.bincount(dataset.y).tolist() == [6000] * 10
    assert float(dataset.x.float().mean()) / 255 == pytest.approx(dataset.mean[0], abs=1e-4)
    assert float(dataset.x.float().std()) / 255 == pytest.approx(dataset.std[0], abs=1e-4)


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (np.arange(20) % 9, "'mnist': class '9' has no samples"),
        (np.arange(20), r"labels 0\.\.19, but mnist has 0\.\.9"),
    ],
)
def test_a_class_without_samples_or_labels_out_of_range_is_refused(options, tmp_path, labels, line):
    write_idx(tmp_path / "raw", "train", "t10k", labels)
    with pytest.raises(ValueError, match=line):
        load(options(name="mnist", dir=str(tmp_path / "raw")))


def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(options, tmp_path):
    with pytest.raises(ValueError, match="not found") as refusal:
        load(options(name="fashion-mnist", dir=str(tmp_path)))
    text = str(refusal.value)
    for part in (str(tmp_path), "data.dir", "data.download", "apt-get install dataset-fashion"):
        assert part in text and "\n" not in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gz", b"\x1f\x8b\x08 not gzip at all", "cannot be read"),
        ("a.gz", gzip.compress(idx(np.zeros((50, 4), np.uint8)))[:-20], "cannot be read"),
        ("a", b"P5 4 4 255", "not an IDX file of bytes"),
        ("a", b"", "not an IDX file of bytes"),
        ("a", b"\0\0\x08\x03\0\0", "ends inside its header"),
        ("a", idx(np.zeros((2, 3), np.uint8))[:-1], "5 bytes where its header says 6"),
    ],
    ids=["not-gzip", "gzip-cut-short", "not-idx", "empty", "header-cut-short", "body-cut-short"],
)
def test_a_damaged_file_is_refused_in_one_line_with_its_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        read_idx(path)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


Leaf = Callable[..., Dataset]


def users(path: Path, sizes: dict[str, int], *, first: int = 0, **changes: Any) -> Path:
    """A file of users with so many FEMNIST images each, of three classes in turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {
        user: {"x": [[(first + i) / 1000] * 784 for i in range(n)], "y": [i % 3 for i in range(n)]}
        for user, n in sizes.items()
    }
    whole = {"users": list(sizes), "num_samples": [*sizes.values()], "user_data": held}
    path.write_text(json.dumps(whole | changes))
    return path


@pytest.fixture
def leaf(options: Callable[..., Data], tmp_path: Path) -> Leaf:
    """``leaf(kind="table")``: the data set of the files in ``tmp_path``."""
    return lambda kind="image": load(options(name="leaf", dir=str(tmp_path), kind=kind))


def test_rows_of_numbers_need_data_kind(leaf: Leaf, tmp_path: Path) -> None:
    for part in ("train", "test"):
        users(tmp_path / part / "a.json", {"u": 3})
    with pytest.raises(ValueError, match=r"user 'u': x has the shape \(3, 784\), .* set data.kind"):
        leaf("auto")
    assert leaf("table").shape == (784,)


def test_users_are_owners_in_the_order_of_their_names(leaf: Leaf, tmp_path: Path) -> None:
    users(tmp_path / "train" / "a.json", {"f10": 3, "f9": 4})
    users(tmp_path / "train" / "b.json", {"f2": 5}, first=100)
    users(tmp_path / "test" / "a.json", {"f9": 2, "f10": 0, "f2": 1})
    data = leaf()
    assert data.shape == (1, 28, 28) and data.x.dtype == torch.float32
    assert torch.bincount(data.owner).tolist() == [5, 4, 3]  # f2, f9, f10
    first = data.x[data.owner == 0][:, 0, 0, 0].tolist()
    assert first == pytest.approx([0.1, 0.101, 0.102, 0.103, 0.104])
    assert data.owner_test.tolist() == [1, 1, 0] and data.y_test.tolist() == [0, 1, 0]


def test_a_test_of_users_who_do_not_train_is_nobodys_own(leaf: Leaf, tmp_path: Path) -> None:
    users(tmp_path / "train" / "a.json", {"a": 3, "b": 3})
    users(tmp_path / "test" / "a.json", {"b": 2, "stranger": 2})
    data = leaf()
    assert data.owners == 2 and data.owner_test is None and len(data.y_test) == 4


def test_nested_lists_say_their_own_shape(leaf: Leaf, tmp_path: Path) -> None:
    image = [[[i, 2, 3] for i in range(4)]] * 5  # 5 × 4, three channels
    for part in ("train", "test"):
        held = {"u": {"x": [image, image], "y": [0, 1]}}
        users(tmp_path / part / "a.json", {"u": 2}, user_data=held)
    data = leaf()
    assert data.shape == (3, 5, 4) and data.x.dtype == torch.uint8


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"user_data": [1]}, "there is no 'user_data' by user in it"),
        ({"user_data": {"a": {"x": []}}}, "user 'a': there are no 'x' and 'y', but 'x'"),
        ({"users": ["a", "c"], "num_samples": [3, 3]}, "user 'c': there are no 'x' and 'y', but"),
        ({"num_samples": [4]}, "user 'a': not 4 samples, as num_samples says"),
        ({"num_samples": [3, 3]}, "num_samples has 2 entries for 1 users"),
        (
            {"user_data": {"a": {"x": ["to be", "or not", "to"], "y": [0, 1, 2]}}},
            "'a': samples are t",
        ),
        ({"user_data": {"a": {"x": [[1.0] * 60] * 3, "y": [0, 1, 2]}}}, "60 numbers, which make"),
        ({"user_data": {"a": {"x": [[1.0] * 49] * 3, "y": [0, 1, 2]}}}, r"are float32 \(1, 7"),
        ({"users": 3}, "'users' is no list of names"),
        ({"users": [["a"]]}, "'users' is no list of names"),
        ({"num_samples": 3}, "'num_samples' is no list of numbers"),
        ({"users": ["1" * 5000]}, "user '1+': a name of 5000 characters, more than 200"),
        ({"user_data": {"a": {"x": None, "y": [0]}}}, "user 'a': it holds object, not numbers"),
        ({"user_data": {"a": {"x": [[1.0, 10**24]], "y": [0]}}}, "user 'a': it holds object, not"),
        ({"user_data": {"a": {"x": [[1.0, 10**400]], "y": [0]}}}, "it has an integer of 401 dig"),
        ({"user_data": {"a": {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}}}, "'a': its samples differ"),
        ({"user_data": {"a": {"x": [[1.0]], "y": 0}}}, r"user 'a': y has the shape \(\), but t"),
        ({"user_data": {"a": {"x": [[1.0]], "y": [0, 1]}}}, r"user 'a': y has the shape \(2,\)"),
        ({"user_data": {"a": {"x": [[math.nan]], "y": [0]}}}, "user 'a': x holds numbers that are"),
        ({"user_data": {"a": {"x": [[1.0]], "y": [math.nan]}}}, "user 'a': y has values that are"),
        ({"user_data": {"a": {"x": [[1.0]], "y": [0.5]}}}, "user 'a': y has values that are not"),
        ({"user_data": {"a": {"x": [[1.0]], "y": [20_000_000]}}}, "'a': y: label 20000000 is not"),
        ({"user_data": {"a": [1, 2]}}, "user 'a': there are no 'x' and 'y', but list"),
        (b"[" * 100_000, "damaged or no JSON"),
        (b'{"user_data": "\xff"}', "damaged or no JSON"),
        (b"7", "there is no 'user_data' by user in it"),
        (b'{"users": []}', "there is no 'user_data' by user in it"),
        (None, "not a regular file"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_with_its_path(leaf, tmp_path, changes, line) -> None:
    users(tmp_path / "train" / "a.json", {"u": 3})
    fields = changes if isinstance(changes, dict) else {}
    path = users(tmp_path / "test" / "a.json", {"a": 3}, **fields)
    if isinstance(changes, bytes):
        path.write_bytes(changes)
    elif changes is None:
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(ValueError, match=line) as refused:
        leaf()
    assert str(refused.value).startswith(f"{path}") and "\n" not in str(refused.value)


def test_a_file_that_is_cut_off_or_missing_is_named(leaf: Leaf, tmp_path: Path) -> None:
    path = users(tmp_path / "train" / "a.json", {"u": 3})
    with pytest.raises(ValueError, match=r"test: no \*.json files"):
        leaf()
    users(tmp_path / "test" / "a.json", {"u": 3})
    path.write_text(path.read_text()[:-40])
    with pytest.raises(ValueError, match=r"train/a.json: damaged or no JSON") as refused:
        leaf()
    assert "\n" not in str(refused.value)


class Stored:
    """Stands in for torchvision's class: 20 samples, of which the pixel (1, 2) tells the number."""

    base_folder = "cifar-10-batches-py"
    roots: tuple[str, ...] = ()
    classes = tuple("abcdefghij")

    def __init__(self, root: str, *, download: bool, train: bool = True, split: str = "") -> None:
        Stored.roots += (root,)
        number = np.arange(20, dtype=np.uint8)
        if split:
            self.data = np.zeros((20, 3, 32, 32), dtype=np.uint8)
            self.data[:, 0, 1, 2] = number
            self.labels = number.astype(np.int64) % 10
        else:
            self.data = np.zeros((20, 32, 32, 3), dtype=np.uint8)
            self.data[:, 1, 2, 0] = number
            self.targets = [int(n) % 10 for n in number]


@pytest.mark.parametrize(("name", "title"), [("cifar10", "CIFAR10"), ("svhn", "SVHN")])
def test_images_have_their_channels_first(options, monkeypatch, tmp_path, name, title):
    from common.vision import torchvision

    monkeypatch.setattr(torchvision.datasets, title, Stored)
    dataset = load(options(name=name, dir=str(tmp_path)))
    assert dataset.shape == (3, 32, 32) and dataset.x.dtype == torch.uint8
    assert dataset.x[:, 0, 1, 2].tolist() == list(range(20))
    assert dataset.y.tolist() == [*range(10)] * 2 and dataset.y.dtype == torch.int64
    assert len(dataset.mean) == 3


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_a_missing_colour_set_is_refused_in_one_line(options, tmp_path, name):
    with pytest.raises(ValueError, match=f"{name}.*data.dir.*data.download") as refusal:
        load(options(name=name, dir=str(tmp_path)))
    assert str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_svhn_files_that_are_not_svhn_are_refused(options, tmp_path):
    (tmp_path / "train_32x32.mat").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"'svhn' at .*train_32x32\.mat is damaged or incomplete"):
        load(options(name="svhn", dir=str(tmp_path)))


def test_cifar_is_read_once_and_again_when_its_files_change(options, monkeypatch, tmp_path):
    from common.data import DATASETS, decoded
    from common.vision import torchvision

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Stored)
    monkeypatch.setattr(decoded, "SMALL", 0)
    batch = tmp_path / Stored.base_folder / "data_batch_1"
    batch.parent.mkdir()
    batch.write_bytes(b"one")
    before, wanted = len(Stored.roots), options(name="cifar10", dir=str(batch.parent))
    first, second = (DATASETS["cifar10"].load(wanted) for _ in range(2))
    assert Stored.roots[before:] == (str(tmp_path),) * 2, "training and test part, once"
    assert second.classes == first.classes == Stored.classes
    assert torch.equal(first.x, second.x) and torch.equal(first.y_test, second.y_test)
    assert second.y.dtype == torch.int64 and second.mean == first.mean
    batch.write_bytes(b"three")
    DATASETS["cifar10"].load(wanted)
    assert len(Stored.roots) == before + 4
