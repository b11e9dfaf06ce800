"""Data sets that torchvision can download: the MNIST family, CIFAR-10, CIFAR-100 and SVHN.

This module reads the MNIST family's IDX files, gzipped or not, so that processes need not import
torchvision. torchvision reads the others and verifies their checksums. This takes seconds, so
tensors of large files are cached (``decoded.py``) until the files change.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from common.data import decoded
from common.data.dataset import Dataset
from common.settings.config import Data

UNSIGNED_BYTE = 0x08  #: type code of bytes in an IDX file's header


def _root(directory: str) -> Path:
    """Return ``data.dir`` with ``~`` resolved, or a folder in the user's cache if it is empty."""
    return Path(directory).expanduser() if directory else decoded.cache_dir() / "data"


def _not_found(name: str, searched: list[Path], hint: str = "") -> str:
    """Return the error message for a missing data set: the folders searched and the remedies."""
    folders = ", ".join(str(path) for path in searched)
    return (
        f"data set {name!r} not found in {folders}: set data.dir to the folder of its files, or "
        f"data.download = true{hint}"
    )


def _open(
    name: str, title: str, folder: Path, *, inside: str, download: bool, **part: object
) -> Any:
    """Return torchvision's data set object; raise ``ValueError``, one line, with the folder.

    ``title``: torchvision's class; ``inside``: a file or folder of the data set in ``folder``.
    """
    from common.vision import torchvision

    try:
        return getattr(torchvision.datasets, title)(str(folder), download=download, **part)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        message = _not_found(name, [folder])
        if download:
            message = f"data set {name!r}: download to {folder} failed ({error})"
        elif (path := folder / inside).exists():
            message = f"data set {name!r} at {path} is damaged or incomplete: download it again"
        raise ValueError(message) from error


@final
@dataclass(frozen=True)
class Family:
    """Data set of the MNIST family: files, statistics and possible locations."""

    name: str
    classes: tuple[str, ...]
    mean: float
    std: float
    title: str  # torchvision's class, and the name of its folder in data.dir
    train: str = "train"  # files are {train}-images-idx3-ubyte and {train}-labels-idx1-ubyte
    test: str = "t10k"
    split: dict[str, str] = field(default_factory=dict)  # further arguments of torchvision's class
    system: str = ""  # folder that a package of the operating system installs
    hint: str = ""
    first_label: int = 0
    upright: bool = True  # EMNIST stores its images transposed

    def load(self, data: Data) -> Dataset:
        """Load the data set from existing files or a download; it is decoded once."""
        files = _find(self, data)
        saved: dict[str, Any] = decoded.cached_files(self.name, files, lambda: _decode(self, files))
        return Dataset(self.name, self.classes, **saved, mean=(self.mean,), std=(self.std,))

    def find(self, folder: Path) -> list[Path]:
        """Return train images, train labels, test images, test labels, or an empty list."""
        files = []
        for part in (self.train, self.test):
            for stem in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
                paths = [folder / stem, folder / f"{stem}.gz"]
                files += [path for path in paths if path.is_file()][:1]
        return files if len(files) == 4 else []


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

The loader also searches the folder of the Debian package dataset-fashion-mnist.
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
    """Return the uint8 array of an IDX file; raise ``ValueError`` with the path for other files.

    The format is two zero bytes, type, number of dimensions, big-endian sizes, and array bytes.
    """
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
    base = _root(data.dir)
    raw = base / family.title / "raw"
    folders = [raw, base]
    if not data.dir and family.system:
        folders.insert(0, Path(family.system))
    for folder in folders:
        if files := family.find(folder):
            return files
    if not data.download:
        raise ValueError(_not_found(family.name, folders, family.hint))
    _open(family.name, family.title, base, inside="", download=True, **family.split)
    if not (files := family.find(raw)):
        raise ValueError(_not_found(family.name, [raw], family.hint))
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


@final
@dataclass(frozen=True)
class Colour:
    """Colour data set in torchvision's format: CIFAR is a folder, SVHN two files."""

    name: str
    title: str  # torchvision's class
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folder: str = ""  # CIFAR's folder inside data.dir

    def load(self, data: Data) -> Dataset:
        """Load the data set, from the cached copy if the files exist already."""
        root = _root(data.dir)
        if root.name == self.folder:
            root = root.parent
        files = [root / f"{part}_32x32.mat" for part in ("train", "test")]
        if self.folder:
            inside = root / self.folder
            files = sorted(inside.iterdir()) if inside.is_dir() else []
        complete = files and all(file.is_file() for file in files)

        def decode() -> dict[str, Tensor]:
            return self._decode(root, data.download)

        saved: dict[str, Any] = (
            decoded.cached_files(self.name, files, decode) if complete else decode()
        )
        classes = tuple(bytes(saved.pop("classes").tolist()).decode().split("\n"))
        return Dataset(self.name, classes, **saved, mean=self.mean, std=self.std)

    def _decode(self, root: Path, download: bool) -> dict[str, Tensor]:
        """Return the data set as tensors, including the class names as bytes."""
        tensors, classes = {}, [str(c) for c in range(10)]
        for suffix, part in (("", "train"), ("_test", "test")):
            if self.folder:
                stored = self._open(root, download, train=part == "train")
                images = torch.from_numpy(stored.data).permute(0, 3, 1, 2).contiguous()
                labels, classes = stored.targets, stored.classes
            else:
                stored = self._open(root, download, split=part)
                images, labels = torch.from_numpy(stored.data), stored.labels
            tensors[f"x{suffix}"] = images
            tensors[f"y{suffix}"] = torch.from_numpy(np.asarray(labels, dtype=np.int64))
        names = torch.tensor(list("\n".join(classes).encode()), dtype=torch.uint8)
        return {**tensors, "classes": names}

    def _open(self, root: Path, download: bool, **part: object) -> Any:
        inside = self.folder or "train_32x32.mat"
        return _open(self.name, self.title, root, inside=inside, download=download, **part)


#: CIFAR-10's mean and std, by convention also used for CIFAR-100
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))

CIFAR10 = Colour("cifar10", "CIFAR10", *_CIFAR, "cifar-10-batches-py")
"""50,000 + 10,000 images, 32×32 (Krizhevsky 2009)."""
CIFAR100 = Colour("cifar100", "CIFAR100", *_CIFAR, "cifar-100-python")
"""50,000 + 10,000 images, 32×32, 100 fine classes (Krizhevsky 2009)."""
SVHN = Colour("svhn", "SVHN", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
"""73,257 + 26,032 house numbers, 32×32, without the extra part (Netzer et al. 2011)."""
