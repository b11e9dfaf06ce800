"""The MNIST family: MNIST, Fashion-MNIST and EMNIST letters, from IDX files, gzipped or not.

An IDX file is a header (two zero bytes, type, number of dimensions, big-endian sizes) and the
bytes of the array. Reading it here spares every process the import of torchvision, which is only
needed to download; large files are decoded once (``decoded.py``).
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from common.config import Data
from common.data import decoded
from common.data.dataset import Dataset
from common.data.decoded import how_to_get, root

UNSIGNED_BYTE = 0x08


@final
@dataclass(frozen=True)
class Family:
    """One data set of the family: its files, its statistics and the paths it may lie under."""

    name: str
    classes: tuple[str, ...]
    mean: float
    std: float
    title: str  # torchvision's class, and its folder under data.dir
    train: str = "train"  # files are {train}-images-idx3-ubyte and {train}-labels-idx1-ubyte
    test: str = "t10k"
    split: dict[str, str] = field(default_factory=dict)  # what else torchvision's class asks for
    system: str = ""  # where a package of the operating system puts the files
    hint: str = ""
    first_label: int = 0
    upright: bool = True  # EMNIST stores its images transposed

    def load(self, data: Data) -> Dataset:
        """From the files that are there, else downloaded; decoded once."""
        files = _find(self, data)
        parts = decoded.kept(self.name, files, lambda: _decode(self, files))
        return Dataset(self.name, self.classes, **parts, mean=(self.mean,), std=(self.std,))

    def find(self, place: Path) -> list[Path]:
        """Train images, train labels, test images, test labels; empty unless all are there."""
        found = []
        for part in (self.train, self.test):
            for stem in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
                paths = [place / stem, place / f"{stem}.gz"]
                found += [path for path in paths if path.is_file()][:1]
        return found if len(found) == 4 else []


MNIST = Family("mnist", tuple("0123456789"), 0.1307, 0.3081, "MNIST")
"""60,000 + 10,000 digits, 28×28 (LeCun et al. 1998)."""
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
FASHION_MNIST = Family(
    "fashion-mnist",
    tuple(CLOTHES.split(",")),
    0.2860,
    0.3530,
    "FashionMNIST",
    system="/usr/share/datasets/fashion-mnist",
    hint=", or on Debian: apt-get install dataset-fashion-mnist",
)
"""60,000 + 10,000 pieces of clothing, 28×28 (Xiao et al. 2017).

The Debian package dataset-fashion-mnist is found by itself.
"""
EMNIST_LETTERS = Family(
    "emnist-letters",
    tuple("abcdefghijklmnopqrstuvwxyz"),
    0.1739,
    0.3170,
    "EMNIST",
    "emnist-letters-train",
    "emnist-letters-test",
    {"split": "letters"},
    first_label=1,
    upright=False,
)
"""124,800 + 20,800 letters, 28×28, upright, labels 0..25 (Cohen et al. 2017)."""


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an IDX file; raises ValueError, naming the file, if it is not one."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise ValueError(f"{path}: not an IDX file of bytes (it starts with {content[:4].hex()})")
    head = 4 + 4 * content[3]
    if len(content) < head:
        raise ValueError(f"{path}: damaged, it ends inside its header")
    shape = struct.unpack(f">{content[3]}I", content[4:head])
    if len(content) - head != math.prod(shape):
        raise ValueError(
            f"{path}: damaged, {len(content) - head} bytes where its header says "
            f"{math.prod(shape)} {shape}"
        )
    return np.frombuffer(bytearray(content[head:]), dtype=np.uint8).reshape(shape)


def _decode(family: Family, files: list[Path]) -> dict[str, Tensor]:
    tensors = (*_pair(family, *files[:2]), *_pair(family, *files[2:]))
    return dict(zip(("x", "y", "x_test", "y_test"), tensors, strict=True))


def _find(family: Family, data: Data) -> list[Path]:
    base = root(data.dir)
    usual = base / family.title / "raw"
    places = [usual, base]
    if not data.dir and family.system:
        places.insert(0, Path(family.system))
    for place in places:
        if files := family.find(place):
            return files
    if not data.download:
        raise ValueError(how_to_get(family.name, places, family.hint))
    from common.vision import torchvision

    try:
        getattr(torchvision.datasets, family.title)(str(base), download=True, **family.split)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(
            f"data set {family.name!r}: download to {base} failed ({error})"
        ) from error
    if not (files := family.find(usual)):
        raise ValueError(how_to_get(family.name, [usual], family.hint))
    return files


def _pair(family: Family, images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(f"{images}: images of shape {x.shape} do not fit labels of {y.shape}")
    target = y.astype(np.int64) - family.first_label
    if len(y) and not 0 <= target.min() <= target.max() < len(family.classes):
        raise ValueError(
            f"{labels}: labels {y.min()}..{y.max()}, but {family.name} has "
            f"{family.first_label}..{family.first_label + len(family.classes) - 1}"
        )
    pictures = torch.from_numpy(x)[:, None]
    if not family.upright:
        pictures = pictures.transpose(-1, -2).contiguous()
    return pictures, torch.from_numpy(target)
