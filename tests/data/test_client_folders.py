"""Image folders of several clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from common.config import Data
from common.data import load
from common.data.shares import share

Options = Callable[..., Data]


def paint(folder: Path, images: int, shade: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(images):
        Image.new("L", (6, 6), shade + i).save(folder / f"{i}.png")


def hospitals(root: Path) -> Path:
    """Two clients with folders of classes alone, one with train and test; no one has all."""
    paint(root / "h2" / "cat", 5, 0)
    paint(root / "h2" / "dog", 10, 20)
    paint(root / "h10" / "dog", 5, 40)
    paint(root / "h1" / "train" / "cat", 3, 60)
    paint(root / "h1" / "train" / "emu", 4, 80)
    paint(root / "h1" / "test" / "emu", 2, 100)
    return root


def test_each_folder_is_an_owners(options: Options, tmp_path: Path) -> None:
    data = load(options(name="client-folders", dir=str(hospitals(tmp_path / "h"))))
    assert data.classes == ("cat", "dog", "emu") and data.shape == (1, 6, 6)
    assert data.owner is not None and data.owner_test is not None
    assert torch.bincount(data.owner).tolist() == [7, 12, 4]  # h1, h2, h10
    assert torch.bincount(data.owner_test).tolist() == [2, 3, 1]
    assert data.x_test[data.owner_test == 0, 0, 0, 0].tolist() == [100, 101]
    assert data.y[data.owner == 2].tolist() == [1] * 4
    own = options(name="client-folders", dir=str(tmp_path / "h"), partition="natural", test="own")
    assert [len(share(own, k, 3, 1).test) for k in range(3)] == [2, 3, 1]
    again = load(options(name="client-folders", dir=str(tmp_path / "h"), image_size=4))
    assert again.shape == (1, 4, 4) and again.y.equal(data.y)
    # the same folder read as classes has a decoded copy of its own
    assert load(options(name="folder", dir=str(tmp_path / "h" / "h1"))).classes == ("cat", "emu")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".h-clients-0.safetensors", ".h-clients-4.safetensors", "h"]


def without_test(root: Path) -> None:
    (root / "h1" / "test").rename(root / "h1" / "exam")


def without_images(root: Path) -> None:
    (root / "h3" / "cat").mkdir(parents=True)


def with_a_foreign_class(root: Path) -> None:
    paint(root / "h1" / "test" / "gnu", 1, 0)


def with_half_an_image(root: Path) -> None:
    path = root / "h10" / "dog" / "0.png"
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (without_test, "h1: there is a train folder, but no test beside it"),
        (without_images, "h3: no images"),
        (with_a_foreign_class, "h1/test/gnu: class 'gnu' has no training folder"),
        (with_half_an_image, "h10/dog/0.png: not a readable image"),
    ],
)
def test_what_is_wrong_with_a_clients_folder_is_one_line(
    options: Options, tmp_path: Path, spoil: Callable[[Path], None], line: str
) -> None:
    spoil(hospitals(tmp_path / "h"))
    with pytest.raises(ValueError, match=line) as refused:
        load(options(name="client-folders", dir=str(tmp_path / "h")))
    assert "\n" not in str(refused.value)


def test_a_folder_without_clients_is_refused(options: Options, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no client's folder in it"):
        load(options(name="client-folders", dir=str(tmp_path)))
    paint(tmp_path / "h1" / "cat", 2, 0)
    with pytest.raises(ValueError, match="1 class folders in all, at least 2"):
        load(options(name="client-folders", dir=str(tmp_path)))
