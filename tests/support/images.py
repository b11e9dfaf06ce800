"""Folders of grey images, as private data and as a server's test data."""

from pathlib import Path

import numpy as np
from PIL import Image


def paint(folder: Path, seed: int, *, test: int = 2, **classes: int) -> Path:
    """Write so many 8×8 training images of each class, and ``test`` test images of each.

    A class is brighter than the one before it, and another seed gives other images.
    """
    draw = np.random.default_rng(seed)
    for part in ("train", "test"):
        for c, (name, count) in enumerate(classes.items()):
            place = folder / part / name
            place.mkdir(parents=True)
            for i in range(count if part == "train" else test):
                pixels = draw.integers(0, 100, (8, 8)) + 150 * c
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return folder
