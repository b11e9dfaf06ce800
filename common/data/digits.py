"""Handwritten digits, 8×8: the 1,797 images that come inside scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from common.data.dataset import DataOptions, Dataset, channel_statistics, holdout
from common.seeds import rng


def load_digits(data: DataOptions) -> Dataset:
    """Grey values 0..16 scaled to 0..255; 80 % of each digit train, 20 % test, always the same.

    UCI Optical Recognition of Handwritten Digits (test part), as in ``sklearn.datasets``.
    """
    from sklearn.datasets import load_digits as embedded

    images, labels = embedded(return_X_y=True)
    scaled = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    x, y = torch.from_numpy(scaled), torch.from_numpy(labels.astype(np.int64))
    train, test = holdout(y, 0.2, rng(0, "digits"))
    names = tuple(str(c) for c in range(10))
    return Dataset(
        "digits", names, x[train], y[train], x[test], y[test], *channel_statistics(x[train])
    )
