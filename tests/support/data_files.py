"""Small data files in the formats that users have: IDX, npz, R's, and folders of images."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def idx(array: np.ndarray) -> bytes:
    """Return a uint8 array in IDX format, the format of MNIST."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(
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


def write_npz(path: Path, data: Any, **more: Any) -> Path:
    """Write a file with the pickled object ``data``; return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        np.savez_compressed(file, data=data, **more)
    return path


def write_clients(folder: Path, count: int = 3, *, train: int = 24, test: int = 9) -> Path:
    """Write the files of ``count`` clients in the format of PFLlib and HtFLlib.

    Images are in [-1, 1], a little darker for each k.
    """
    draw = np.random.default_rng(0)
    for part, n in (("train", train), ("test", test)):
        for k in range(count):
            y = np.arange(n + k) % 3
            mean = (y[:, None, None, None] - 1) * 0.6
            x = draw.normal(0, 0.1, (n + k, 1, 8, 8)) + mean - 0.05 * k
            write_npz(folder / part / f"{k}.npz", {"x": x.astype(np.float32), "y": y})
    return folder


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


ATTRIBUTES, TAGGED = 512, 1024


def integer(value: int) -> bytes:
    return struct.pack(">i", value)


def text(value: str) -> bytes:
    return integer(9) + integer(len(value)) + value.encode()


def symbol(value: str) -> bytes:
    return integer(1) + text(value)


def strings(values: list[str]) -> bytes:
    return integer(16) + integer(len(values)) + b"".join(map(text, values))


def attributes(**values: bytes) -> bytes:
    pairs = (integer(2 | TAGGED) + symbol(name) + value for name, value in values.items())
    return b"".join(pairs) + integer(254)


def factor(codes: list[int], levels: list[str]) -> bytes:
    """A factor of R, whose codes begin with 1."""
    content = integer(len(codes)) + b"".join(map(integer, codes))
    own = {"levels": strings(levels), "class": strings(["factor"])}
    return integer(13 | ATTRIBUTES) + content + attributes(**own)


def reals(values: list[float]) -> bytes:
    return integer(14) + integer(len(values)) + struct.pack(f">{len(values)}d", *values)


def rda(path: Path, name: str, **columns: bytes) -> Path:
    """Write a data frame as R's ``save`` does, in version 2."""
    rows = integer(13) + integer(2) + integer(-(2**31)) + integer(-3)
    content = integer(len(columns)) + b"".join(columns.values())
    own = {"names": strings([*columns]), "row.names": rows, "class": strings(["data.frame"])}
    frame = integer(19 | ATTRIBUTES) + content + attributes(**own)
    head = b"RDX2\nX\n" + integer(2) + integer(0x40102) + integer(0x20300)
    body = head + integer(2 | TAGGED) + symbol(name) + frame + integer(254)
    path.write_bytes(gzip.compress(body))
    return path


LABEL = factor([2, 1, 2], ["A", "B"])
