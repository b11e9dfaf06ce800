"""CIFAR-10, CIFAR-100 and SVHN, through torchvision, which checks the files' checksums.

That takes seconds, so what came out of it is kept (``decoded.py``) until the files change.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from common.config import Data
from common.data import decoded
from common.data.dataset import Dataset


@final
@dataclass(frozen=True)
class Colour:
    """A data set as torchvision stores it: CIFAR in a folder, SVHN in two files of its own."""

    name: str
    title: str  # torchvision's class
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folder: str = ""  # of CIFAR, below data.dir

    def load(self, data: Data) -> Dataset:
        """From the copy that is kept, if the files are there already."""
        place = decoded.root(data.dir)
        if place.name == self.folder:
            place = place.parent
        files = [place / f"{part}_32x32.mat" for part in ("train", "test")]
        if self.folder:
            inside = place / self.folder
            files = sorted(inside.iterdir()) if inside.is_dir() else []
        there = files and all(file.is_file() for file in files)

        def decode() -> dict[str, Tensor]:
            return self._decode(place, data.download)

        parts = decoded.kept(self.name, files, decode) if there else decode()
        classes = tuple(bytes(parts.pop("classes").tolist()).decode().split("\n"))
        return Dataset(self.name, classes, **parts, mean=self.mean, std=self.std)

    def _decode(self, place: Path, download: bool) -> dict[str, Tensor]:
        """Everything as tensors, the classes' names too."""
        tensors, classes = {}, [str(c) for c in range(10)]
        for suffix, part in (("", "train"), ("_test", "test")):
            if self.folder:
                stored = self._open(place, download, train=part == "train")
                images = torch.from_numpy(stored.data).permute(0, 3, 1, 2).contiguous()
                labels, classes = stored.targets, stored.classes
            else:
                stored = self._open(place, download, split=part)
                images, labels = torch.from_numpy(stored.data), stored.labels
            tensors[f"x{suffix}"] = images
            tensors[f"y{suffix}"] = torch.from_numpy(np.asarray(labels, dtype=np.int64))
        names = torch.tensor(list("\n".join(classes).encode()), dtype=torch.uint8)
        return {**tensors, "classes": names}

    def _open(self, place: Path, download: bool, **part: object) -> Any:
        """torchvision's data set object, or one line that says where it was looked for."""
        from common.vision import torchvision

        try:
            kind = getattr(torchvision.datasets, self.title)
            return kind(str(place), download=download, **part)
        except (OSError, RuntimeError, ValueError) as error:
            name, inside = self.name, place / (self.folder or "train_32x32.mat")
            if download:
                line = f"data set {name!r}: download to {place} failed ({error})"
            elif inside.exists():
                line = f"data set {name!r} at {inside} is damaged or incomplete: download it again"
            else:
                line = decoded.how_to_get(name, [place])
            raise ValueError(line) from error


#: of CIFAR-10, and by the custom of the field also used for CIFAR-100
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))

CIFAR10 = Colour("cifar10", "CIFAR10", *_CIFAR, "cifar-10-batches-py")
"""50,000 + 10,000 images, 32×32 (Krizhevsky 2009)."""
CIFAR100 = Colour("cifar100", "CIFAR100", *_CIFAR, "cifar-100-python")
"""50,000 + 10,000 images, 32×32, 100 fine classes (Krizhevsky 2009)."""
SVHN = Colour("svhn", "SVHN", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
"""73,257 + 26,032 house numbers, 32×32, without the extra part (Netzer et al. 2011)."""
