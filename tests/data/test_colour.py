"""Pictures: of several sizes and colours, and of a partition."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from common.data import load
from common.data.picture import bubbles


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


def test_cifar_is_read_through_torchvision_once_and_again_when_its_files_change(
    options, monkeypatch, tmp_path
):
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


def test_the_area_of_a_bubble_is_proportional_to_its_count_also_in_the_key():
    figure = bubbles(np.array([[1200, 0], [300, 600]]), classes=("cat", "dog"))
    axes = figure.axes[0]
    dots, key = axes.collections[:2]
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    areas = dots.get_sizes()
    assert (areas / areas[0]).tolist() == pytest.approx([1.0, 0.25, 0.5])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1,000", "250", "50"]
    assert key.get_sizes()[0] / areas[0] == pytest.approx(1000 / 1200)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]


def test_neighbouring_bubbles_do_not_touch_in_a_federation_of_ten():
    figure = bubbles(np.full((10, 10), 7))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    diameter = axes.collections[0].get_sizes()[0] ** 0.5 * figure.dpi / 72
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    assert diameter < min(x1 - x0, y1 - y0)


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (200, 10)])
def test_any_federation_can_be_drawn_and_written(tmp_path, shape):
    bubbles(np.ones(shape, dtype=int)).savefig(tmp_path / "partition.svg")
    assert (tmp_path / "partition.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("counts", [np.zeros((0, 3)), np.zeros(3), np.array([[-1, 2]])])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(ValueError, match=r"must be \(clients, classes\)"):
        bubbles(counts)


@pytest.mark.full
def test_pyplot_is_not_imported():
    code = "import numpy, sys; from common.data.picture import bubbles; bubbles(numpy.ones((2, 2)))"
    check = f"{code}; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
