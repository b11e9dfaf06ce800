"""Handwritten digits, 8×8: the 1,797 images that come inside scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch

from common.data.dataset import DataOptions, Dataset, channel_statistics, holdout
from common.seeds import rng


def load_digits(data: DataOptions) -> Dataset:
    """Grey values 0..16 scaled to 0..255; 80 % of each digit train, 20 % test, always the same.

    UCI Optical Recognition of Handwritten Digits (test part), as in ``sklearn.datasets``.
    """
    table = _table()
    scaled = np.rint(table[:, :64].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    x, y = torch.from_numpy(scaled), torch.from_numpy(table[:, 64].astype(np.int64))
    train, test = holdout(y, 0.2, rng(0, "digits"))
    names = tuple(str(c) for c in range(10))
    return Dataset(
        "digits", names, x[train], y[train], x[test], y[test], *channel_statistics(x[train])
    )


def _table() -> np.ndarray:
    """(1797, 65): 64 pixels and the label of each image.

    Read from scikit-learn's file without importing scikit-learn, which takes every process a
    second; through its loader where the file is kept elsewhere.
    """
    package = importlib.util.find_spec("sklearn")
    if package is not None and package.origin is not None:
        path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                return np.loadtxt(file, delimiter=",", dtype=np.float64)
    from sklearn.datasets import load_digits as embedded

    images, labels = embedded(return_X_y=True)
    return np.column_stack([images, labels])
