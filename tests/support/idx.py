"""Files in the format of MNIST."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    """Return a uint8 array in IDX format."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(
    folder: Path, train: str, test: str, labels: np.ndarray, *, packed: bool = False
) -> np.ndarray:
    """Write images and labels for training and test; return the images.

    Image i is 28×28 pixels, with i + 1 at row 1, column 2 and 0 elsewhere.
    """
    folder.mkdir(parents=True)
    images = np.zeros((len(labels), 28, 28), dtype=np.uint8)
    images[:, 1, 2] = np.arange(len(labels)) + 1
    for part in (train, test):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            path = folder / f"{part}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return images
