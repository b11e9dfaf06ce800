"""CIFAR-10, CIFAR-100 and SVHN, through torchvision, which checks the files' checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.data.dataset import DataOptions, Dataset
from common.data.places import how_to_get, root

#: of CIFAR-10, and by the custom of the field also used for CIFAR-100
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SVHN_MEAN, SVHN_STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def load_cifar10(data: DataOptions) -> Dataset:
    """50,000 + 10,000 images, 32×32 (Krizhevsky 2009)."""
    return _cifar("cifar10", "CIFAR10", data)


def load_cifar100(data: DataOptions) -> Dataset:
    """50,000 + 10,000 images, 32×32, 100 fine classes (Krizhevsky 2009)."""
    return _cifar("cifar100", "CIFAR100", data)


def load_svhn(data: DataOptions) -> Dataset:
    """73,257 + 26,032 house numbers, 32×32, without the extra part (Netzer et al. 2011)."""
    from common.vision import torchvision

    train, test = (
        _open("svhn", torchvision.datasets.SVHN, data, split=s) for s in ("train", "test")
    )
    names = tuple(str(c) for c in range(10))
    pair = [(torch.from_numpy(s.data), _labels(s.labels)) for s in (train, test)]
    return Dataset("svhn", names, *pair[0], *pair[1], SVHN_MEAN, SVHN_STD)


def _cifar(name: str, title: str, data: DataOptions) -> Dataset:
    from common.vision import torchvision

    kind = getattr(torchvision.datasets, title)
    train, test = (_open(name, kind, data, train=part) for part in (True, False))
    pair = [
        (torch.from_numpy(s.data).permute(0, 3, 1, 2).contiguous(), _labels(s.targets))
        for s in (train, test)
    ]
    return Dataset(name, tuple(train.classes), *pair[0], *pair[1], CIFAR_MEAN, CIFAR_STD)


def _open(name: str, kind: Any, data: DataOptions, **part: object) -> Any:
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
