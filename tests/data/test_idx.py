"""The MNIST family, from files the tests write."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from common.data import load
from common.data.idx import FASHION_MNIST, read_idx
from tests.support.idx import idx, write


def test_mnist_is_read_from_the_layout_of_torchvision(options, tmp_path):
    images = write(tmp_path / "MNIST" / "raw", "train", "t10k", np.arange(20) % 10)
    dataset = load(options(name="mnist", dir=str(tmp_path)))
    assert dataset.shape == (1, 28, 28) and dataset.num_classes == 10
    assert torch.equal(dataset.x[:, 0], torch.from_numpy(images))
    assert dataset.y_test.tolist() == [*range(10)] * 2
    assert (dataset.mean, dataset.std) == ((0.1307,), (0.3081,))


def test_gzipped_files_directly_in_the_folder_are_read_too(options, tmp_path):
    write(tmp_path / "here", "train", "t10k", np.arange(20) % 10, packed=True)
    dataset = load(options(name="fashion-mnist", dir=str(tmp_path / "here"), image_size=32))
    assert dataset.shape == (1, 32, 32) and dataset.classes[9] == "Ankle boot"


def test_emnist_letters_stand_upright_and_start_at_zero(options, tmp_path):
    stems = ("emnist-letters-train", "emnist-letters-test")
    write(tmp_path / "EMNIST" / "raw", *stems, np.arange(52) % 26 + 1)
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


def test_a_class_without_samples_is_named(options, tmp_path):
    write(tmp_path / "MNIST" / "raw", "train", "t10k", np.arange(20) % 9)
    with pytest.raises(ValueError, match="'mnist': class '9' has no samples"):
        load(options(name="mnist", dir=str(tmp_path)))


def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(options, tmp_path):
    with pytest.raises(ValueError, match="not found") as refusal:
        load(options(name="fashion-mnist", dir=str(tmp_path)))
    text = str(refusal.value)
    for part in (str(tmp_path), "data.dir", "data.download", "apt-get install dataset-fashion"):
        assert part in text
    assert "\n" not in text


def test_labels_out_of_range_are_refused(options, tmp_path):
    write(tmp_path / "raw", "train", "t10k", np.arange(20))
    with pytest.raises(ValueError, match=r"labels 0\.\.19, but mnist has 0\.\.9"):
        load(options(name="mnist", dir=str(tmp_path / "raw")))


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
