"""CIFAR-10, CIFAR-100 and SVHN, through torchvision, which checks the files' checksums.

That takes seconds, so what came out of it is kept (``decoded.py``) until the files change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.config import Data
from common.data import decoded
from common.data.dataset import Dataset
from common.data.decoded import how_to_get, root

#: of CIFAR-10, and by the custom of the field also used for CIFAR-100
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
SVHN_MEAN, SVHN_STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def load_cifar10(data: Data) -> Dataset:
    """50,000 + 10,000 images, 32×32 (Krizhevsky 2009)."""
    return _cifar("cifar10", "CIFAR10", data)


def load_cifar100(data: Data) -> Dataset:
    """50,000 + 10,000 images, 32×32, 100 fine classes (Krizhevsky 2009)."""
    return _cifar("cifar100", "CIFAR100", data)


def load_svhn(data: Data) -> Dataset:
    """73,257 + 26,032 house numbers, 32×32, without the extra part (Netzer et al. 2011)."""
    place = root(data.dir)
    files = [place / f"{part}_32x32.mat" for part in ("train", "test")]
    parts = _kept("svhn", files, lambda: _decode_svhn(data))
    return _dataset("svhn", parts, SVHN_MEAN, SVHN_STD)


def _cifar(name: str, title: str, data: Data) -> Dataset:
    folder = root(data.dir)
    if folder.name != FOLDERS[name]:
        folder /= FOLDERS[name]
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    parts = _kept(name, files, lambda: _decode_cifar(name, title, data))
    return _dataset(name, parts, CIFAR_MEAN, CIFAR_STD)


def _kept(
    name: str, files: list[Path], decode: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """From the copy that is kept, if the ``files`` are there already."""
    there = files and all(file.is_file() for file in files)
    return decoded.kept(name, files, decode) if there else decode()


def _dataset(
    name: str, parts: dict[str, Tensor], mean: tuple[float, ...], std: tuple[float, ...]
) -> Dataset:
    classes = tuple(bytes(parts.pop("classes").tolist()).decode().split("\n"))
    return Dataset(name, classes, **parts, mean=mean, std=std)


def _parts(
    classes: Iterable[str], train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """Everything as tensors, the classes' names too."""
    names = torch.tensor(list("\n".join(classes).encode()), dtype=torch.uint8)
    return {"classes": names, "x": train[0], "y": train[1], "x_test": test[0], "y_test": test[1]}


def _decode_svhn(data: Data) -> dict[str, Tensor]:
    from common.vision import torchvision

    kind = torchvision.datasets.SVHN
    sets = [_open("svhn", kind, data, split=part) for part in ("train", "test")]
    train, test = [(torch.from_numpy(each.data), _labels(each.labels)) for each in sets]
    return _parts([str(c) for c in range(10)], train, test)


def _decode_cifar(name: str, title: str, data: Data) -> dict[str, Tensor]:
    from common.vision import torchvision

    kind = getattr(torchvision.datasets, title)
    sets = [_open(name, kind, data, train=part) for part in (True, False)]
    train, test = [
        (torch.from_numpy(each.data).permute(0, 3, 1, 2).contiguous(), _labels(each.targets))
        for each in sets
    ]
    return _parts(sets[0].classes, train, test)


def _open(name: str, kind: Any, data: Data, **part: object) -> Any:
    """torchvision's data set object, or one line that says where it was looked for."""
    place = root(data.dir)
    if Path(place).name == getattr(kind, "base_folder", None):
        place = place.parent
    try:
        return kind(str(place), download=data.download, **part)
    except (OSError, RuntimeError, ValueError) as error:
        if data.download:
            raise ValueError(f"data set {name!r}: download to {place} failed ({error})") from error
        inside = place / str(getattr(kind, "base_folder", "train_32x32.mat"))
        if inside.exists():
            raise ValueError(
                f"data set {name!r} at {inside} is damaged or incomplete: download it again"
            ) from error
        raise ValueError(how_to_get(name, [place])) from error


def _labels(values: object) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.int64))
