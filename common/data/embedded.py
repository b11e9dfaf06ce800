"""Data sets without files: scikit-learn's digits, and synthetic classes for tests and figures.

The synthetic data sets are fast to generate, learnable and the same on every machine.
"""

import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.data.dataset import Dataset, halved, measured
from common.settings.extras import missing
from common.training.seeds import rng

SYSTEM = Path("/usr/share/datasets")  #: folder of the file on a machine without scikit-learn


def digits() -> Dataset:
    """Return 1,797 handwritten digits, 8×8, in a fixed split of 80 % and 20 % of each digit.

    Grey values 0..16 are scaled to 0..255. The source is UCI Optical Recognition of Handwritten
    Digits (test part), as in ``sklearn.datasets``.
    """
    table = _table()
    scaled = np.rint(table[:, :64].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    x, y = torch.from_numpy(scaled), torch.from_numpy(table[:, 64].astype(np.int64))
    names = tuple(str(c) for c in range(10))
    return measured("digits", names, **halved({"x": x, "y": y}, "digits"))


def _table() -> np.ndarray:
    """Return an array (1797, 65) with 64 pixels and the label of each image.

    It reads scikit-learn's file directly, because the import takes each process a second. Images
    of clients have that file without the package. If the file has another location, it uses
    scikit-learn's loader.
    """
    package = importlib.util.find_spec("sklearn")
    folder = SYSTEM
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "datasets" / "data"
    if (path := folder / "digits.csv.gz").is_file():
        return np.loadtxt(path, delimiter=",", dtype=np.float64)
    try:
        from sklearn.datasets import load_digits as embedded
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from error
    images, labels = embedded(return_X_y=True)
    return np.column_stack([images, labels])


def toy(
    *,
    classes: int = 3,
    shape: tuple[int, int, int] = (1, 8, 8),
    train: int = 360,
    test: int = 120,
) -> Dataset:
    """Return uint8 images with a random pattern per class plus noise; sizes are totals.

    A linear model separates them nearly perfectly. Labels alternate (0, 1, 2, 0, ..), so that the
    classes are balanced.
    """
    draw = rng(0, "toy", classes, *shape)
    pattern = draw.uniform(0, 255, (classes, *shape))

    def sample(n: int) -> tuple[Tensor, Tensor]:
        y = np.arange(n) % classes
        x = 0.6 * pattern[y] + 50 + draw.normal(0, 35, (n, *shape))
        return torch.from_numpy(x.clip(0, 255).astype(np.uint8)), torch.from_numpy(y)

    x, y = sample(train)
    x_test, y_test = sample(test)
    names = tuple(f"pattern {c}" for c in range(classes))
    return measured("toy", names, x=x, y=y, x_test=x_test, y_test=y_test)


def points() -> Dataset:
    """Return float32 points (N, 2, 1, 1) of three spiral arms, one per class, in [-1.2, 1.2]².

    FedORION, Figure 1, draws decision boundaries for two features and three classes as well.
    """
    draw = rng(0, "points")

    def sample(n: int) -> tuple[Tensor, Tensor]:
        y = np.arange(n) % 3
        radius = np.sqrt(draw.uniform(0.01, 1.0, n))
        angle = 2 * math.pi * (y / 3 + 0.6 * radius) + draw.normal(0, 0.12, n)
        x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return torch.from_numpy(x.astype(np.float32)[:, :, None, None]), torch.from_numpy(y)

    x, y = sample(600)
    x_test, y_test = sample(300)
    names = ("first arm", "second arm", "third arm")
    return Dataset("points", names, x, y, x_test, y_test, (0.0, 0.0), (1.0, 1.0))
