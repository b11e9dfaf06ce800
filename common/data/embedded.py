"""Data sets that need no files: scikit-learn's digits, and made-up classes for tests and pictures.

The made-up ones are instant, learnable and the same everywhere.
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


def digits() -> Dataset:
    """1,797 handwritten digits, 8×8; 80 % of each digit train, 20 % test, always the same.

    Grey values 0..16 are scaled to 0..255. UCI Optical Recognition of Handwritten Digits (test
    part), as in ``sklearn.datasets``.
    """
    table = _table()
    scaled = np.rint(table[:, :64].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    x, y = torch.from_numpy(scaled), torch.from_numpy(table[:, 64].astype(np.int64))
    names = tuple(str(c) for c in range(10))
    return measured("digits", names, **halved({"x": x, "y": y}, "digits"))


def _table() -> np.ndarray:
    """(1797, 65): 64 pixels and the label of each image.

    Read from scikit-learn's file without importing scikit-learn, which takes every process a
    second; through its loader where the file is kept elsewhere.
    """
    package = importlib.util.find_spec("sklearn")
    if package is not None and package.origin is not None:
        path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
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
    """uint8 images: a random pattern per class plus noise; ``train`` and ``test`` are totals.

    A linear model separates them nearly perfectly. Labels go round (0, 1, 2, 0, ..), so the
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
    """float32 (N, 2, 1, 1): three interleaved spiral arms, one per class, in [-1.2, 1.2]².

    Two features and three classes, as in FedORION, Figure 1, which draws decision boundaries.
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
