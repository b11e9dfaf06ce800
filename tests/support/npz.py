"""Clients' data in the format of PFLlib and HtFLlib."""

from pathlib import Path
from typing import Any

import numpy as np


def write(path: Path, data: Any, **more: Any) -> Path:
    """Write a file with the pickled object ``data``; return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        np.savez_compressed(file, data=data, **more)
    return path


def clients(folder: Path, count: int = 3, *, train: int = 24, test: int = 9) -> Path:
    """Write the files of ``count`` clients with images in [-1, 1], a little darker for each k."""
    draw = np.random.default_rng(0)
    for part, n in (("train", train), ("test", test)):
        for k in range(count):
            y = np.arange(n + k) % 3
            x = (
                draw.normal(0, 0.1, (n + k, 1, 8, 8))
                + (y[:, None, None, None] - 1) * 0.6
                - 0.05 * k
            )
            write(folder / part / f"{k}.npz", {"x": x.astype(np.float32), "y": y})
    return folder
