"""Stripes of two directions, and checks: 360 images of 8×8 pixels."""

import numpy as np
import torch

from common.data import Dataset
from common.data.dataset import channel_statistics


def stripes() -> Dataset:
    """300 images to train on and 60 to test, a third of each class."""
    rng, y = np.random.default_rng(0), np.arange(360) % 3
    rows, columns = np.indices((8, 8)) // 2 % 2
    patterns = np.stack([rows, columns, rows ^ columns])
    x = patterns[y] * 120 + rng.integers(0, 136, (360, 8, 8))
    images, labels = torch.tensor(x, dtype=torch.uint8)[:, None], torch.tensor(y)
    mean, std = channel_statistics(images[:300])
    names = ("rows", "columns", "checks")
    return Dataset(
        "stripes", names, images[:300], labels[:300], images[300:], labels[300:], mean, std
    )


def shuffled(dataset: Dataset, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Equal random shares."""
    return np.array_split(rng.permutation(len(dataset.y)), clients)
